// Ranks of a machine whose NUMA nodes have different budgets of host memory: one has at home what another moves.
#include "kit/cluster.hpp"
#include "kit/process_ranks.hpp"
#include "kit/seeded_random.hpp"
#include "kit/seeds.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::ProcessRanks;
using penstock::test::SeededRandom;

/// Everything that may be on disk is there, and `ranks` have as much memory as `node_budgets` say.
RunOptions on_disk(std::uint32_t ranks, std::uint64_t seed) {
  RunOptions options{.ranks = ranks, .steps = 4, .model = deep_model(), .seed = seed};
  options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::nvme;
  options.config.penstock.tiles_in_flight = 1 + static_cast<std::uint32_t>(seed % 3);
  return options;
}

/// Each rank on a node of its own: those of `roomy` have `more` than the least.
void set_node_budgets(RunOptions& options, const std::vector<bool>& roomy, ByteCount more) {
  const ByteCount least = smallest_host_budget(options) / options.ranks;
  PenstockConfig& penstock = options.config.penstock;
  penstock.host_budget = {};
  for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
    penstock.node_budgets.push_back(least + (roomy[rank] ? more : ByteCount()));
    penstock.rank_nodes.push_back(rank);
  }
}

MemoryPlan plan_of(RunOptions options, std::uint32_t local_rank) {
  options.config.offload_param.nvme_paths = options.config.offload_optimizer.nvme_paths = {"."};
  return plan_memory(options.config, options.model, options.ranks, options.ranks, options.device_memory,
                     local_rank)
      .value();
}

TEST(EngineNodeBudgets, LetARankKeepWhatAnotherOneMoves) {
  for (const auto memory : {tiers::DeviceMemory::host, tiers::DeviceMemory::separate}) {
    RunOptions options = on_disk(2, 3);
    options.device_memory = memory;
    set_node_budgets(options, {false, true}, 64_MiB);
    options.config.penstock.node_budgets[0] += plan_of(options, 0).disk_gradients;
    const MemoryPlan least = plan_of(options, 0), most = plan_of(options, 1);
    ASSERT_TRUE(least.homes().is_zero() && !least.gradients_on_disk);
    ASSERT_EQ(most.homes(), most.disk_shards + most.disk_tiles);
    std::array<ByteCount, 2> first, all;  // what each rank has moved
    options.before_step = [&](std::uint32_t step, std::uint32_t rank, swap::Runtime& runtime) {
      const auto traffic = runtime.ledger().traffic();
      (step <= 1 ? first : all).at(rank) = traffic.read + traffic.written;
    };

    const RunResult result = train(options);
    options.steps = 1;
    const RunResult one_step = train(options);

    ASSERT_FALSE(result.error) << result.error->message();
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
    EXPECT_EQ(result.bytes_written - one_step.bytes_written, (least.tile_writes + least.shard_writes) * 3);
    const ByteCount read = result.bytes_read - one_step.bytes_read;
    EXPECT_GE(read, least.tile_reads * 3);
    EXPECT_LE(read, (least.tile_reads + least.tile_rereads_max +
                     least.shard_reads_max * options.micro_batches + least.update_shard_reads_max) *
                        3);
    EXPECT_GT(all[0], first[0]);
    EXPECT_EQ(all[1], 0_B);
  }
}

RunOptions random_run(std::uint64_t seed) {
  SeededRandom random(seed + 61'000);
  RunOptions options = on_disk(2 + static_cast<std::uint32_t>(seed % 3), seed);
  if (random.below(3) == 0) options.model = random_model(random);
  options.micro_batches = 1 + static_cast<std::uint32_t>(random.below(2));
  if (random.below(4) == 0) options.config.offload_param.device = OffloadDevice::cpu;
  if (random.below(4) == 0) options.config.offload_optimizer.device = OffloadDevice::cpu;
  if (random.below(2) == 0) options.device_memory = tiers::DeviceMemory::separate;
  if (options.device_memory == tiers::DeviceMemory::separate)
    options.config.cpu_update_ratio = std::array{1.0f, 0.5f, 0.0f}[random.below(3)];
  if (random.below(2) == 0) {
    options.model.checkpoints = {.count = static_cast<std::uint32_t>(options.model.units.size()),
                                 .size = ByteCount(1 + random.below(300'000)),
                                 .reads = 2};
  }
  keep_random_states(options, seed);
  update_in_backward_at_random(options, seed);
  return options;
}

TEST(EngineNodeBudgets, ChangeNoBit) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 40)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunOptions options = random_run(seed);
    SeededRandom random(seed + 67'000);
    RunOptions alike = options;
    alike.config.penstock.host_budget = smallest_host_budget(options);
    const RunResult expected = train(alike);
    ASSERT_FALSE(expected.error) << expected.error->message();
    std::vector<bool> roomy(options.ranks);
    for (std::uint32_t rank = 0; rank < options.ranks; ++rank) roomy[rank] = rank % 2 == seed % 2;
    set_node_budgets(options, roomy, random.below(2) == 0 ? 64_MiB : ByteCount(random.below(2'000'000)));

    for (const bool as_processes : {false, true}) {
      if (as_processes && options.device_memory != tiers::DeviceMemory::host) continue;
      ProcessRanks processes(options.ranks, seed);
      if (as_processes)
        options.membership = [&processes](std::uint32_t rank) { return processes.membership(rank); };
      const RunResult result = train(options);

      ASSERT_FALSE(result.error) << result.error->message();
      EXPECT_EQ(result.digest, expected.digest);
      EXPECT_EQ(result.parameters, expected.parameters);
      EXPECT_EQ(result.wrong_checkpoints, 0u);
      EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
      EXPECT_LE(result.bytes_written, expected.bytes_written);
    }
  }
}

/// In real time, each rank a thread.
TEST(EngineNodeBudgets, ChangeNoBitOfThreads) {
  RunOptions options = on_disk(3, 1);
  options.seed = {};
  RunOptions alike = options;
  alike.config.penstock.host_budget = smallest_host_budget(options);
  set_node_budgets(options, {true, false, true}, 32_MiB);

  const RunResult expected = train(alike), result = train(options);

  ASSERT_FALSE(expected.error || result.error) << (result.error ? *result.error : *expected.error).message();
  EXPECT_EQ(result.digest, expected.digest);
  EXPECT_LT(result.bytes_written, expected.bytes_written);
}

/// All ranks, so that none waits for one that does not come.
TEST(EngineNodeBudgets, ThatAreTooSmallForOneRankRefuseAll) {
  RunOptions options = on_disk(2, 1);
  set_node_budgets(options, {false, true}, 64_MiB);
  options.config.penstock.node_budgets[0] -= 4_KiB;

  const RunResult result = train(options);

  ASSERT_EQ(result.errors.size(), 2u);
  for (const auto& error : result.errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::budget_too_small) << error->message();
    EXPECT_NE(error->message().find("node 0"), std::string::npos) << error->message();
  }
}

}  // namespace
}  // namespace penstock::zero::test
