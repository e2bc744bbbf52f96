#include "zero/layout/rank_nodes.hpp"

#include "kit/cluster.hpp"
#include "kit/seeded_random.hpp"
#include "tiers/memory/numa.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <gtest/gtest.h>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero {
namespace {

using Nodes = std::vector<std::size_t>;

TEST(RankNodes, AreOneForEachOfManyRanksAndSeveralForEachOfFew) {
  const auto of = [](std::uint32_t ranks, std::size_t nodes) {
    std::vector<Nodes> all;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) all.push_back(spread_over_nodes(rank, ranks, nodes));
    return all;
  };
  EXPECT_EQ(of(4, 2), (std::vector<Nodes>{{0}, {0}, {1}, {1}}));
  EXPECT_EQ(of(3, 2), (std::vector<Nodes>{{0}, {0}, {1}}));
  EXPECT_EQ(of(1, 2), (std::vector<Nodes>{{0, 1}}));
  EXPECT_EQ(of(2, 5), (std::vector<Nodes>{{0, 1}, {2, 3, 4}}));
  EXPECT_EQ(of(2, 1), (std::vector<Nodes>{{0}, {0}}));
  EXPECT_EQ(spread_over_nodes(9, 4, 4), Nodes{3});  // a rank that there is not
}

TEST(RankNodes, GiveARankItsPartOfTheBudgetOfItsNode) {
  Config config;
  EXPECT_EQ(host_budget_of_rank(config, 4, 3), 0_B);
  config.penstock.host_budget = 8_GiB;
  EXPECT_EQ(host_budget_of_rank(config, 4, 3), 2_GiB);
  EXPECT_FALSE(parts_differ(config));

  config.penstock.host_budget = {};
  config.penstock.node_budgets = {8_GiB, 6_GiB, 1_GiB};
  config.penstock.rank_nodes = {0, 0, 1, 1};
  EXPECT_EQ(host_budget_of_rank(config, 4, 1), 4_GiB);
  EXPECT_EQ(host_budget_of_rank(config, 4, 2), 3_GiB);
  EXPECT_EQ(rank_with_least_memory(config), 2u);
  EXPECT_TRUE(parts_differ(config));
  config.penstock.rank_nodes = {0, 1, 0, 0};
  EXPECT_EQ(host_budget_of_rank(config, 4, 1), 6_GiB);
  EXPECT_EQ(host_budget_of_rank(config, 4, 3), 8_GiB / 3);
  EXPECT_EQ(rank_with_least_memory(config), 0u);
  config.penstock.rank_nodes = {1, 1, 1, 1};
  EXPECT_EQ(host_budget_of_rank(config, 4, 0), 6_GiB / 4);
  EXPECT_FALSE(parts_differ(config));
}

/// A machine whose nodes have none of the cores of this process.
class MachineOfNodes : public testing::Test {
 protected:
  [[nodiscard]] tiers::NumaTopology topology(std::uint32_t nodes) const {
    for (std::uint32_t node = 0; node < nodes; ++node) {
      const auto directory = machine_.path() / "devices/system/node" / ("node" + std::to_string(node));
      std::filesystem::create_directories(directory);
      std::ofstream(directory / "cpulist") << 1000 + 4 * node << "-" << 1003 + 4 * node << "\n";
    }
    return tiers::NumaTopology::read(machine_.path());
  }
  [[nodiscard]] static Config config() {
    Config config = test::RunOptions::default_config();
    config.offload_param =
        config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"a", "b"}};
    config.penstock.host_budget = {};
    config.penstock.path_nodes = {0, 1};
    return config;
  }

 private:
  penstock::test::ScratchDirectory machine_;
};

TEST_F(MachineOfNodes, GivesItsRanksMemoryAndPathsOfTheirNodes) {
  const Config config = MachineOfNodes::config();
  const auto machine = topology(2);
  const auto options = [&](std::uint32_t ranks, std::uint32_t rank) {
    return plan_memory(config, test::small_model(), ranks, ranks)->runtime_options(config, rank, machine);
  };
  EXPECT_EQ(options(2, 1).memory_nodes, std::vector<std::uint32_t>{1});
  EXPECT_EQ(options(2, 1).paths.size(), 1u);
  EXPECT_EQ(options(1, 0).memory_nodes, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(options(1, 0).paths.size(), 2u);  // else a drive would have nothing to do
}

TEST_F(MachineOfNodes, LeavesTheChoiceToTheKernelWhereItHasOneNode) {
  Config config = MachineOfNodes::config();
  const MemoryPlan plan = plan_memory(config, test::small_model(), 1, 1).value();
  EXPECT_TRUE(plan.runtime_options(config, 0, topology(1)).memory_nodes.empty());
  EXPECT_TRUE(plan.runtime_options(config, 0, tiers::NumaTopology::read("/no/sysfs")).memory_nodes.empty());
  config.penstock.rank_nodes = {3};
  EXPECT_EQ(plan.runtime_options(config, 0, topology(1)).memory_nodes, std::vector<std::uint32_t>{3});
}

/// A plan of each rank of a machine that has two.
struct Pair {
  MemoryPlan first, second;
};
Pair plan_both(const Config& config, const ModelLayout& model, tiers::DeviceMemory memory) {
  const auto of = [&](std::uint32_t rank) { return plan_memory(config, model, 2, 2, memory, rank).value(); };
  return {of(0), of(1)};
}

TEST(NodeBudgets, AreTheBudgetOfThePlansOfTheirRanks) {
  Config config = test::RunOptions::default_config();
  config.penstock.host_budget = {};
  config.penstock.node_budgets = {96_MiB, 64_MiB};
  config.penstock.rank_nodes = {0, 1};
  const auto [first, second] = plan_both(config, test::small_model(), tiers::DeviceMemory::separate);
  EXPECT_EQ(first.host_budget, 96_MiB);
  EXPECT_EQ(second.host_budget, 64_MiB);
  EXPECT_EQ(first.planned_local_rank, 0u);
  EXPECT_EQ(second.planned_local_rank, 1u);
  EXPECT_EQ(first.host_of_machine, 160_MiB);
  EXPECT_EQ(second.host_of_machine, 160_MiB);

  const MemoryPlan least = plan_memory(config, test::small_model(), 2, 2).value();
  EXPECT_EQ(least.host_budget, 64_MiB);
  EXPECT_EQ(least.planned_local_rank, 1u);

  config.penstock.node_budgets = {64_MiB, 64_MiB};
  EXPECT_EQ(plan_memory(config, test::small_model(), 2, 2, {}, 1)->planned_local_rank, 1u);
}

TEST(NodeBudgets, RefuseARuntimeForARankThatHasAnotherPart) {
  Config config = test::RunOptions::default_config();
  config.penstock.host_budget = {};
  config.penstock.node_budgets = {96_MiB, 64_MiB};
  config.penstock.rank_nodes = {0, 1};
  const auto [first, second] = plan_both(config, test::small_model(), tiers::DeviceMemory::separate);
  const auto options = [&](const MemoryPlan& plan, std::uint32_t rank) {
    const PlannedEngine engine{&config, &plan};
    return shared_runtime_options({&engine, 1}, rank);
  };
  EXPECT_TRUE(options(first, 0));
  EXPECT_TRUE(options(second, 1));
  const auto refused = options(first, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  EXPECT_NE(refused.error().message().find("wanted the plan of rank 1 of the machine, got that of rank 0"),
            std::string::npos)
      << refused.error().message();
  EXPECT_FALSE(options(first, 7));
}

TEST(NodeBudgets, ThatAreTooSmallAreNamedAndRefusedForEveryRank) {
  Config config = test::RunOptions::default_config();
  config.penstock.host_budget = {};
  config.penstock.node_budgets = {64_MiB, 8_KiB};
  config.penstock.rank_nodes = {0, 0, 1, 1};
  for (const std::uint32_t rank : {0u, 3u}) {
    const auto refused = plan_memory(config, test::small_model(), 4, 4, tiers::DeviceMemory::separate, rank);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small);
    const std::string message = refused.error().message();
    EXPECT_NE(message.find("penstock.node_budgets"), std::string::npos) << message;
    EXPECT_NE(message.find("node 1, of which rank 2 of the machine has a part"), std::string::npos)
        << message;
    EXPECT_NE(message.find("got 4.0 KiB"), std::string::npos) << message;
  }
}

void expect_equal_checkpoints_and_update(const MemoryPlan& a, const MemoryPlan& b) {
  EXPECT_EQ(a.update.device_slots, b.update.device_slots);
  EXPECT_EQ(a.update.slot, b.update.slot);
  EXPECT_EQ(a.update.split, b.update.split);
  EXPECT_EQ(a.update.tiles_by_device, b.update.tiles_by_device);
  EXPECT_EQ(a.update.streamed, b.update.streamed);
  EXPECT_EQ(a.update.by_cpu, b.update.by_cpu);
  EXPECT_EQ(a.checkpoints.count, b.checkpoints.count);
  EXPECT_EQ(a.checkpoints.size, b.checkpoints.size);
  EXPECT_EQ(a.checkpoints.device_slots, b.checkpoints.device_slots);
  for (std::uint64_t tile = 0; tile < a.tiles; ++tile) {
    EXPECT_EQ(a.tile_kept(tile), b.tile_kept(tile)) << tile;
    EXPECT_EQ(a.updated_on_device(tile), b.updated_on_device(tile)) << tile;
  }
}

/// What plan_memory() promises to be the same on all ranks.
void expect_alike(const MemoryPlan& a, const MemoryPlan& b) {
  for (const auto member :
       {&MemoryPlan::host_of_machine,     &MemoryPlan::host_minimum,         &MemoryPlan::device_budget,
        &MemoryPlan::device_minimum,      &MemoryPlan::swap_tensor_max,      &MemoryPlan::swap_committed,
        &MemoryPlan::committed_copies,    &MemoryPlan::device_gathered,      &MemoryPlan::device_gradients,
        &MemoryPlan::device_gathered_max, &MemoryPlan::device_gradients_max, &MemoryPlan::device_tiles,
        &MemoryPlan::device_shards,       &MemoryPlan::device_accumulators,  &MemoryPlan::device_partials,
        &MemoryPlan::exact_slots_max,     &MemoryPlan::device_collectives,   &MemoryPlan::host_shards,
        &MemoryPlan::host_tiles,          &MemoryPlan::host_results,         &MemoryPlan::host_piece,
        &MemoryPlan::host_matrix,         &MemoryPlan::host_staging_min,     &MemoryPlan::host_leases,
        &MemoryPlan::host_lease_gap,      &MemoryPlan::disk_shards,          &MemoryPlan::disk_tiles,
        &MemoryPlan::disk_frozen_shards})
    EXPECT_EQ(a.*member, b.*member);
  for (const auto member :
       {&MemoryPlan::shares_memory, &MemoryPlan::gradients_on_device, &MemoryPlan::shards_on_device,
        &MemoryPlan::device_squares, &MemoryPlan::shards_on_disk, &MemoryPlan::tiles_on_disk})
    EXPECT_EQ(a.*member, b.*member);
  EXPECT_EQ(a.fingerprint, b.fingerprint);
  EXPECT_EQ(a.tile_elements, b.tile_elements);
  EXPECT_EQ(a.flats_in_host, b.flats_in_host);
  EXPECT_EQ(a.tiles, b.tiles);
  EXPECT_EQ(a.tiles_kept, b.tiles_kept);
  expect_equal_checkpoints_and_update(a, b);
}

OffloadDevice random_tier(penstock::test::SeededRandom& random) {
  return std::array{OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme}[random.below(3)];
}

/// Of any stage and tiers, with node 0 of the least memory and node 1 of more.
test::RunOptions random_run(std::uint64_t seed) {
  penstock::test::SeededRandom random(seed);
  test::RunOptions options{.model = test::random_model(random)};
  if (random.below(2) == 0) options.device_memory = tiers::DeviceMemory::separate;
  if (random.below(2) == 0)
    options.model.checkpoints = {.count = 4, .size = ByteCount(1 + random.below(600'000)), .reads = 2};
  Config& config = options.config;
  config.stage = static_cast<std::uint32_t>(random.below(4));
  config.offload_optimizer.device = random_tier(random);
  if (config.stage == 3) config.offload_param.device = random_tier(random);
  config.offload_optimizer.nvme_paths = config.offload_param.nvme_paths = {"."};
  if (random.below(2) == 0) config.penstock.durable_directories = {"run"};
  if (random.below(2) == 0) config.penstock.reduction = Reduction::exact;
  if (config.stage == 3 && options.device_memory == tiers::DeviceMemory::separate && random.below(2) == 0)
    config.cpu_update_ratio = 0.5f;
  test::keep_random_states(options, seed);
  test::update_in_backward_at_random(options, seed);
  const ByteCount least = test::smallest_host_budget(options) / 2;
  config.penstock.node_budgets = {least + ByteCount(random.below(300'000)),
                                  least + ByteCount(random.below(3'000'000))};
  config.penstock.rank_nodes = {0, 1};
  return options;
}

TEST(NodeBudgets, LeaveAlikeWhatOtherRanksSee) {
  int homes = 0, gradients = 0, ahead = 0, checkpoints = 0;  // of how many pairs they differ
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const test::RunOptions options = random_run(seed);
    const auto [first, second] = plan_both(options.config, options.model, options.device_memory);
    expect_alike(first, second);
    homes += first.homes() != second.homes();
    gradients += first.gradients_on_disk != second.gradients_on_disk;
    ahead += first.tiles_ahead != second.tiles_ahead;
    checkpoints += first.checkpoints.in_host != second.checkpoints.in_host;
  }
  for (const int differ : {homes, gradients, ahead, checkpoints}) EXPECT_GT(differ, 3);
}

/// Planned alone, the rank with more memory would have longer tiles.
TEST(NodeBudgets, LeaveAlikeTheLengthOfTiles) {
  Config config{.stage = 3};
  config.offload_param.device = config.offload_optimizer.device = OffloadDevice::cpu;
  config.penstock.device_states = 200_MiB;
  config.cpu_update_ratio = 0;
  ModelLayout model;
  for (int i = 0; i < 40; ++i)
    model.units.push_back({std::to_string(i), {{"weight", ElementCount(50'000'000)}}, {}});
  const MemoryPlan alone = plan_memory(config, model, 2, 2).value();
  config.penstock.node_budgets = {alone.host_minimum + 1_GiB, alone.host_minimum - 4_KiB};
  config.penstock.rank_nodes = {0, 1};

  const auto [first, second] = plan_both(config, model, tiers::DeviceMemory::separate);

  EXPECT_LT(second.tile_elements, alone.tile_elements);
  expect_alike(first, second);
}

TEST(NodeBudgets, ArePartOfThePlansFingerprintWithTheNodesOfTheRanks) {
  Config config = test::RunOptions::default_config();
  config.penstock.node_budgets = {64_MiB, 96_MiB};
  config.penstock.rank_nodes = {0, 1};
  const auto fingerprint = [&] { return plan_memory(config, test::small_model(), 2, 2)->fingerprint; };
  const std::uint64_t before = fingerprint();
  config.penstock.rank_nodes = {1, 0};
  EXPECT_NE(fingerprint(), before);
}

TEST(NodeBudgets, AreRefusedBesideAHostBudgetAndForFewerNodesThanAreNamed) {
  Config config = test::RunOptions::default_config();
  config.penstock.host_budget = 64_MiB;
  config.penstock.node_budgets = {64_MiB};
  config.penstock.rank_nodes = {0, 0};
  const auto refusal = [&] { return config.validate().error().message(); };
  EXPECT_NE(refusal().find("penstock.node_budgets"), std::string::npos) << refusal();
  config.penstock.host_budget = {};
  EXPECT_TRUE(config.validate());
  config.penstock.rank_nodes = {0, 1};
  EXPECT_NE(refusal().find("number 1"), std::string::npos) << refusal();
  config.penstock.rank_nodes.clear();
  EXPECT_NE(refusal().find("needs rank_nodes"), std::string::npos) << refusal();
}

}  // namespace
}  // namespace penstock::zero
