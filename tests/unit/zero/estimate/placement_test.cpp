#include "zero/estimate/placement.hpp"

#include "zero/estimate/model_presets.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace penstock::zero::estimate {
namespace {

using tiers::Tier;

Config on_nvme() {
  Config config;
  config.stage = 3;
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.offload_param =
      config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"/a", "/b"}};
  return config;
}

PlanEstimate estimate(const Config& config) {
  return estimate_plan(config, layout_of(*find_preset("gpt2")), {.ranks_per_node = 2}).value();
}

TEST(Placement, SaysWhichPartOfEachKindIsInEachTier) {
  MemoryPlan plan;
  plan.host_shards = 1_MiB;
  plan.disk_shards = 3_MiB;
  plan.host_gradients = 2_MiB;
  plan.disk_tiles = 10_MiB;
  plan.home_tiles = 3_MiB;
  plan.checkpoints = {.count = 6, .size = 1_MiB, .device_slots = 2, .in_host = 4};
  plan.host_checkpoints = 4_MiB;
  plan.disk_checkpoints = 2_MiB;

  const auto kinds = placement_of(plan);

  ASSERT_EQ(kinds.size(), 4u);
  const auto shares = [](const PlacedBytes& kind) {
    return std::array{kind.share(Tier::device), kind.share(Tier::host), kind.share(Tier::nvme)};
  };
  EXPECT_EQ(kinds[0].kind, "parameters");
  EXPECT_EQ(shares(kinds[0]), (std::array{0.0, 0.25, 0.75}));
  EXPECT_EQ(shares(kinds[1]), (std::array{0.0, 1.0, 0.0}));
  EXPECT_EQ(shares(kinds[2]), (std::array{0.0, 0.3, 0.7}));
  EXPECT_EQ(kinds[2].total(), 10_MiB);
  EXPECT_EQ(kinds[3].kind, "activations");
  EXPECT_EQ(shares(kinds[3]), (std::array{0.25, 0.5, 0.25}));
}

TEST(Placement, HasNoRowOfWhatARankDoesNotHave) {
  MemoryPlan plan;
  plan.device_tiles = 1_MiB;
  plan.checkpoints = {.count = 2, .size = 1_MiB, .device_slots = 2};
  const auto kinds = placement_of(plan);
  ASSERT_EQ(kinds.size(), 2u);
  EXPECT_EQ(kinds[0].kind, "optimizer states");
  EXPECT_EQ(kinds[1].in, (std::array{2_MiB, 0_B, 0_B}));
}

TEST(Placement, OfActivationsIsThatOfTheirPlan) {
  ModelLayout layout = layout_of(*find_preset("gpt2"));
  layout.checkpoints = {.count = 12, .size = 8_MiB};
  for (const ByteCount device : {0_B, 1_GiB}) {
    Config config = on_nvme();
    config.penstock.device_budget = device;
    const PlanEstimate planned = estimate_plan(config, layout, {.ranks_per_node = 2}).value();
    const PlacedBytes activations = placement_of(planned.plan).back();
    EXPECT_EQ(activations.kind, "activations");
    EXPECT_EQ(activations.in[0], planned.plan.checkpoints.device_bytes());
    EXPECT_LE(activations.total(), 3 * 12 * 8_MiB);
  }
}

TEST(NextKnobs, AreWhatTheirPlansTakeAndTheFirstMovesLeast) {
  const Config config = on_nvme();
  const PlanEstimate now = estimate(config);
  const auto knobs = next_knobs(config, layout_of(*find_preset("gpt2")), now);

  ASSERT_GE(knobs.size(), 5u);
  EXPECT_TRUE(std::is_sorted(knobs.begin(), knobs.end(),
                             [](const Knob& a, const Knob& b) { return a.moved < b.moved; }));
  const auto find = [&](const std::string& change) {
    return std::find_if(knobs.begin(), knobs.end(),
                        [&](const Knob& knob) { return knob.change.starts_with(change); });
  };
  Config split = config;
  split.penstock.state_format = cpu_adam::StateFormat::split_q8;
  const PlanEstimate planned = estimate(split);
  const auto knob = find("state_format split_q8");
  ASSERT_NE(knob, knobs.end());
  EXPECT_EQ(knob->moved, planned.read_per_node() + planned.written_per_node());
  EXPECT_EQ(knob->nvme, planned.per_node(Tier::nvme));
  // By hand: of tiles of T bytes, a part c at home in memory leaves (1 - c) T to read and as much to write.
  const auto more = find("host_budget ");
  ASSERT_NE(more, knobs.end());
  Config larger = config;
  larger.penstock.host_budget = (now.plan.host_budget + (now.plan.disk_tiles - now.plan.home_tiles) / 2) * 2;
  EXPECT_EQ(more->change, "host_budget " + to_string(larger.penstock.host_budget));
  const PlanEstimate with_more = estimate(larger);
  EXPECT_EQ(more->moved, with_more.read_per_node() + with_more.written_per_node());
  const auto on_device = find("device_states ");
  ASSERT_NE(on_device, knobs.end());
  Config keeping = config;
  keeping.penstock.device_states = (now.plan.disk_tiles - now.plan.home_tiles) / 2;
  const PlanEstimate with_kept = estimate(keeping);
  EXPECT_EQ(on_device->moved, with_kept.read_per_node() + with_kept.written_per_node());
  EXPECT_LT(on_device->nvme, now.per_node(Tier::nvme));
  EXPECT_EQ(on_device->device, with_kept.per_rank(Tier::device));
  EXPECT_GT(on_device->device, now.per_rank(Tier::device));
  const auto c = static_cast<double>(with_more.plan.home_tiles.value()) /
                 static_cast<double>(with_more.plan.disk_tiles.value());
  EXPECT_GT(c, 0.2);
  EXPECT_NEAR(static_cast<double>(with_more.plan.tile_writes.value()),
              (1 - c) * static_cast<double>(now.plan.tile_writes.value()),
              1e-3 * static_cast<double>(now.plan.tile_writes.value()) * 10);
}

// What they keep in memory does not fit into the budget of a configuration.
TEST(NextKnobs, SayThatTheyLeaveTheHostBudgetOut) {
  for (const bool has_budget : {false, true}) {
    Config config = on_nvme();
    if (has_budget) config.penstock.host_budget = 1_GiB;
    std::size_t found = 0;
    for (const Knob& knob : next_knobs(config, layout_of(*find_preset("gpt2")), estimate(config))) {
      if (!knob.change.starts_with("offload_")) continue;
      ++found;
      EXPECT_EQ(knob.change.ends_with("device cpu, no host_budget"), has_budget) << knob.change;
    }
    EXPECT_GE(found, 1u);
  }
}

TEST(NextKnobs, AreNoneWhereTheDrivesMoveNothing) {
  Config config = on_nvme();
  config.offload_param.device = config.offload_optimizer.device = OffloadDevice::cpu;
  EXPECT_TRUE(next_knobs(config, layout_of(*find_preset("gpt2")), estimate(config)).empty());
}

TEST(DriveSeconds, AreThoseOfTheDriveThatTakesLongest) {
  Config config = on_nvme();
  EXPECT_EQ(drive_seconds(config, estimate(config)), 0);
  config.penstock.path_weights = {1, 3};
  config.penstock.path_limits = {1e9, 1e9};
  const PlanEstimate now = estimate(config);
  const double moved = static_cast<double>((now.read_per_node() + now.written_per_node()).value());
  EXPECT_NEAR(drive_seconds(config, now), moved * 0.75 / 1e9, 1e-6);
}

}  // namespace
}  // namespace penstock::zero::estimate
