#include "zero/estimate/plan_estimate.hpp"

#include "zero/estimate/model_presets.hpp"

#include <gtest/gtest.h>

namespace penstock::zero::estimate {
namespace {

using enum OffloadDevice;
using tiers::Tier;
using Link = PlanEstimate::Link;

/// Two layers of 2^20 elements and a head that shares the embedding.
ModelLayout small_model() {
  const auto unit = [](const char* name) {
    return UnitLayout{.name = name, .parameters = {{std::string(name) + ".w", ElementCount(1 << 20)}}};
  };
  ModelLayout layout{.units = {unit("embedding"), unit("a"), unit("b"), unit("head")}};
  layout.units.back().shared = {{0, 0}};
  return layout;
}

Config config_with(OffloadDevice parameters, OffloadDevice optimizer, std::uint32_t stage = 3) {
  Config config;
  config.stage = stage;
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.offload_param.device = parameters;
  config.offload_optimizer.device = optimizer;
  config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = {"/a"};
  return config;
}

PlanEstimate estimate(const Config& config, RunShape run = {}, const ModelLayout& layout = small_model()) {
  return estimate_plan(config, layout, run).value();
}

const PlanEstimate::Traffic& moved(const PlanEstimate& estimate, Link link, std::string_view what) {
  static const PlanEstimate::Traffic nothing{};
  for (const PlanEstimate::Traffic& one : estimate.traffic) {
    if (one.link == link && one.what == what) return one;
  }
  return nothing;
}

TEST(PlanEstimate, AddsUpToThePlanForEveryConfiguration) {
  const ModelLayout layout = layout_of(*find_preset("gpt2"));
  for (const auto memory : {tiers::DeviceMemory::separate, tiers::DeviceMemory::host}) {
    for (const RunShape run : {RunShape{1, 1, memory}, RunShape{4, 1, memory}, RunShape{2, 3, memory}}) {
      for (const auto& [parameters, optimizer, stage] : {std::tuple{none, none, 3u},
                                                         {cpu, none, 3u},
                                                         {nvme, none, 3u},
                                                         {cpu, cpu, 3u},
                                                         {nvme, cpu, 3u},
                                                         {cpu, nvme, 3u},
                                                         {nvme, nvme, 3u},
                                                         {none, none, 2u},
                                                         {none, cpu, 2u},
                                                         {none, nvme, 2u}}) {
        for (const auto format : {cpu_adam::StateFormat::fp32, cpu_adam::StateFormat::split_q8}) {
          Config config = config_with(parameters, optimizer, stage);
          config.penstock.state_format = format;
          if (optimizer != none) config.penstock.device_states = 20_MiB;
          const MemoryPlan plan =
              plan_memory(config, layout, run.ranks(), run.ranks_per_node, memory).value();
          const PlanEstimate of_plan = estimate(config, run, layout);

          EXPECT_EQ(of_plan.per_rank(Tier::device), plan.device_budget);
          EXPECT_EQ(of_plan.per_rank(Tier::host), plan.host_allocated());
          EXPECT_EQ(of_plan.per_rank(Tier::nvme), plan.swap_bytes);
          EXPECT_EQ(of_plan.per_node(Tier::nvme), plan.swap_bytes * run.ranks_per_node);
          for (const PlanEstimate::Line& line : of_plan.lines) {
            EXPECT_FALSE(line.per_rank.is_zero()) << line.what;
            EXPECT_LE(line.per_rank, of_plan.per_rank(line.tier)) << line.what;
          }
          EXPECT_EQ(of_plan.paths.empty(), plan.swap_bytes.is_zero());
        }
      }
    }
  }
}

/// A commit stays while the next one is written.
TEST(PlanEstimate, CountsTheCommitsOfADurableRun) {
  for (const OffloadDevice to : {nvme, cpu}) {
    Config config = config_with(to, to);
    const ByteCount without = estimate(config).per_rank(Tier::nvme);
    config.penstock.durable_directories = {"/run"};
    const PlanEstimate durable = estimate(config);

    const ByteCount states = to == nvme ? durable.plan.swap_committed : durable.plan.committed_copies * 2;
    EXPECT_GE(states, ByteCount(12 * (4 << 20))) << "masters and moments of four flats";
    EXPECT_EQ(durable.per_rank(Tier::nvme), without + states);
  }
}

// By hand: the device keeps 2 of 4 flats' states, of 2^20 elements each, in tiles that are longer than a flat.
TEST(PlanEstimate, CountsWhatCrossesTheLinkForStatesOnTheDevice) {
  Config config = config_with(cpu, cpu);
  config.penstock.tile_elements = ElementCount(1 << 30);
  config.penstock.device_states = 24_MiB;
  const std::string_view what = "gradients and parameters of states on the device";
  for (const auto format : {cpu_adam::StateFormat::fp32, cpu_adam::StateFormat::split}) {
    config.penstock.state_format = format;
    const PlanEstimate planned = estimate(config);
    ASSERT_EQ(planned.plan.tiles_kept, 2u);
    const bool reads = format == cpu_adam::StateFormat::split;  // the parameter is a part of the master
    EXPECT_EQ(moved(planned, Link::device, what).in, reads ? 8_MiB : 4_MiB);
    EXPECT_EQ(moved(planned, Link::device, what).out, 4_MiB);
    EXPECT_TRUE(moved(planned, Link::device, "tiles that the device updates").in.is_zero());
  }
  config.penstock.state_format = cpu_adam::StateFormat::fp32;
  config.cpu_update_ratio = 0;
  const PlanEstimate streamed = estimate(config);
  EXPECT_EQ(moved(streamed, Link::device, "tiles that the device updates").in, 24_MiB + 4_MiB);
  EXPECT_EQ(moved(streamed, Link::device, "tiles that the device updates").out, 24_MiB + 4_MiB);
}

TEST(PlanEstimate, CountsWhatAStepMoves) {
  // A rank of two has 2^19 elements of each of four flats; the head's is the embedding's too.
  Config config = config_with(nvme, nvme);
  config.gradient_accumulation_steps = config.train_batch_size = 3;
  const PlanEstimate on_disk = estimate(config, {.ranks_per_node = 2});
  const PlanEstimate in_memory = estimate(config_with(cpu, cpu), {.ranks_per_node = 2});
  const PlanEstimate on_device = estimate(config_with(none, none), {.ranks_per_node = 2});
  const PlanEstimate whole = estimate(config_with(none, cpu, 2), {.ranks_per_node = 2});

  const auto& shards = moved(on_disk, Link::nvme, "parameter shards");
  EXPECT_EQ(shards.in, 4_MiB * 2 * 3) << "for the forward and the backward of three micro-batches";
  EXPECT_EQ(shards.out, 4_MiB);
  EXPECT_EQ(moved(on_disk, Link::nvme, "optimizer tiles").out, 24_MiB) << "12 bytes an element";
  EXPECT_EQ(moved(on_disk, Link::device, "parameter shards").in, 4_MiB * 2 * 3);
  EXPECT_EQ(moved(on_disk, Link::device, "reduced gradients").out, 4_MiB * 3);
  EXPECT_EQ(on_disk.written_per_node(), 2 * 28_MiB);

  EXPECT_EQ(in_memory.moved(Link::nvme), 0_B);
  EXPECT_EQ(in_memory.moved(Link::device), 3 * 4_MiB);
  EXPECT_EQ(whole.moved(Link::device), 2 * 4_MiB) << "below stage 3 a flat is gathered once";
  EXPECT_TRUE(on_device.traffic.empty());
}

TEST(PlanEstimate, CountsTheTilesThatPassThroughTheDevice) {
  Config config = config_with(cpu, cpu);
  config.cpu_update_ratio = 0;
  const PlanEstimate by_device = estimate(config);
  const auto& tiles = moved(by_device, Link::device, "tiles that the device updates");

  EXPECT_EQ(tiles.in, 48_MiB + 8_MiB) << "states and gradients";
  EXPECT_EQ(tiles.out, 48_MiB + 8_MiB) << "states and parameters";
}

TEST(PlanEstimate, MovesNothingToADeviceWhoseMemoryIsTheHosts) {
  const RunShape run{.ranks_per_node = 2, .device_memory = tiers::DeviceMemory::host};

  EXPECT_EQ(estimate(config_with(nvme, nvme), run).moved(Link::device), 0_B);
}

TEST(PlanEstimate, UsesTheBudgetsOfTheConfiguration) {
  Config config = config_with(nvme, nvme);
  const PlanEstimate free = estimate(config);
  config.penstock.host_budget = free.plan.host_minimum;
  const PlanEstimate small = estimate(config);
  config.penstock.host_budget = free.plan.host_minimum - 4096_B;

  EXPECT_LT(small.per_rank(Tier::host), free.per_rank(Tier::host));
  EXPECT_GT(small.written_per_node(), free.written_per_node()) << "gradients spill";
  EXPECT_EQ(estimate_plan(config, small_model(), {}).error().code(), ErrorCode::budget_too_small);
}

TEST(PlanEstimate, DividesSwapFilesAmongThePathsByTheirWeights) {
  Config config = config_with(nvme, nvme);
  config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = {"/a", "/b"};
  const PlanEstimate equal = estimate(config, {.ranks_per_node = 4});
  config.penstock.path_weights = {1, 3};
  const PlanEstimate weighted = estimate(config, {.ranks_per_node = 4});
  config.penstock.path_nodes = {0, 1};
  config.penstock.rank_nodes = {0, 0, 0, 1};
  const PlanEstimate by_node = estimate(config, {.ranks_per_node = 4});

  EXPECT_FALSE(equal.shares_are_given);
  EXPECT_DOUBLE_EQ(equal.paths[0].share, 0.5);
  EXPECT_TRUE(weighted.shares_are_given);
  EXPECT_EQ(weighted.paths[1].directory, "/b");
  EXPECT_DOUBLE_EQ(weighted.paths[1].share, 0.75);
  EXPECT_EQ(weighted.paths[0].swap_bytes + weighted.paths[1].swap_bytes, weighted.per_node(Tier::nvme));
  EXPECT_EQ(weighted.paths[0].written * 4, weighted.written_per_node());
  EXPECT_EQ(weighted.paths[1].read + weighted.paths[0].read, weighted.read_per_node());
  EXPECT_DOUBLE_EQ(by_node.paths[0].share, 0.75) << "three of four ranks";
  EXPECT_EQ(by_node.registered * 2, weighted.registered) << "a rank registers its memory for its own paths";
}

TEST(PlanEstimate, AddsUpTheRanksOfNodesWhoseBudgetsDiffer) {
  Config config = config_with(nvme, nvme);
  config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = {"/a", "/b"};
  config.penstock.path_nodes = {0, 1};
  const ByteCount least = estimate(config, {.ranks_per_node = 4}).plan.host_minimum;
  config.penstock.rank_nodes = {0, 1, 0, 0};
  config.penstock.node_budgets = {least * 3 + 1_GiB, least};

  const PlanEstimate node = estimate(config, {.ranks_per_node = 4});

  const auto of = [&](std::uint32_t rank) {
    return plan_memory(config, small_model(), 4, 4, tiers::DeviceMemory::separate, rank).value();
  };
  const MemoryPlan roomy = of(0), narrow = of(1);
  ASSERT_GT(roomy.homes(), narrow.homes());
  ASSERT_NE(roomy.gradients_on_disk, narrow.gradients_on_disk);
  EXPECT_TRUE(node.budgets_differ);
  EXPECT_EQ(node.plan.planned_local_rank, 1u);
  EXPECT_EQ(node.per_rank(Tier::host), narrow.host_allocated());
  EXPECT_EQ(node.per_node(Tier::host), narrow.host_allocated() + roomy.host_allocated() * 3);
  EXPECT_EQ(node.per_node(Tier::nvme), narrow.swap_bytes + roomy.swap_bytes * 3);
  EXPECT_EQ(node.per_node(Tier::device), narrow.device_budget * 4);
  EXPECT_EQ(node.pinned, roomy.host_allocated());
  EXPECT_EQ(node.registered, node.per_node(Tier::host)) << "each rank for the path of its node";
  const auto written = [](const MemoryPlan& plan) {
    return plan.tile_writes + plan.shard_writes + plan.gradient_writes_max;
  };
  EXPECT_EQ(node.written_per_node(), written(narrow) + written(roomy) * 3);
  EXPECT_EQ(node.paths[1].written, written(narrow));
  EXPECT_EQ(node.paths[0].written, written(roomy) * 3);
  EXPECT_EQ(node.paths[1].swap_bytes, narrow.swap_bytes);

  config.penstock.node_budgets = {(least + 1_GiB) * 3, least + 1_GiB};
  EXPECT_FALSE(estimate(config, {.ranks_per_node = 4}).budgets_differ);
}

TEST(PlanEstimate, CountsPinnedAndRegisteredMemoryInWholePages) {
  Config config = config_with(nvme, nvme);
  const RunShape run{.ranks_per_node = 2};
  const PlanEstimate pinned = estimate(config, run);
  config.offload_param.pin_memory = config.offload_optimizer.pin_memory = false;
  config.penstock.io_engine = tiers::EngineChoice::threads;
  const PlanEstimate neither = estimate(config, run);

  const ByteCount arena(round_up(pinned.plan.host_budget.value(), (2_MiB).value()));
  EXPECT_EQ(pinned.pinned, arena);
  EXPECT_EQ(pinned.registered, 2 * arena);
  EXPECT_EQ(neither.pinned, 0_B);
  EXPECT_EQ(neither.registered, 0_B);
  EXPECT_EQ(estimate(config_with(cpu, cpu), run).registered, 0_B) << "without swap files";
}

TEST(PlanEstimate, CountsStepsToADrivesEndurance) {
  EXPECT_EQ(steps_to_endurance(600e12, ByteCount(100'000'000'000)), 6000u);
  EXPECT_EQ(steps_to_endurance(1e12, ByteCount(3)), 333'333'333'333u);
  EXPECT_EQ(steps_to_endurance(1e21, ByteCount(1)), std::uint64_t{1} << 63);
  EXPECT_FALSE(steps_to_endurance(1e12, {}));
}

TEST(PlanEstimate, IsComparedWithTheNearestRowOfDeepSpeed) {
  const NamedModel model{.layout = small_model()};
  const RunShape run{.ranks_per_node = 2};
  const auto compare = [&](const Config& config) { return compare_deepspeed(config, model, run).value(); };

  const auto both = compare(config_with(nvme, nvme));
  EXPECT_EQ(both.row.offload_param, cpu);
  EXPECT_TRUE(both.row.zero_init);
  EXPECT_EQ(to_decimal(both.row.cpu_bytes), std::to_string((4ull << 20) * 18 * 3 / 2));
  EXPECT_EQ(compare(config_with(none, cpu)).row.offload_param, none);
  EXPECT_EQ(compare(config_with(cpu, none)).row.offload_optimizer, none);
  EXPECT_EQ(compare(config_with(none, cpu, 2)).stage, 2u);
  EXPECT_EQ(compare(config_with(none, nvme, 1)).row.offload_optimizer, cpu);
}

}  // namespace
}  // namespace penstock::zero::estimate
