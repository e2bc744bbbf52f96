// Parameter shards that have a place on disk, and their home in host memory.
#include "kit/cluster.hpp"

#include <gtest/gtest.h>

namespace penstock::zero {
namespace {

using test::RunOptions;
using test::RunResult;

/// Two ranks with parameters on disk and tiles in memory, with `more` host memory than is needed.
RunOptions with_room(ByteCount more, std::uint32_t steps) {
  RunOptions options{.ranks = 2, .steps = steps, .model = test::deep_model(), .seed = 5};
  options.config.offload_param.device = OffloadDevice::nvme;
  options.config.offload_optimizer.device = OffloadDevice::cpu;
  options.config.penstock.host_budget = smallest_host_budget(options) + more;
  return options;
}

MemoryPlan plan_of(RunOptions options) {
  options.config.offload_param.nvme_paths = {"."};
  return plan_memory(options.config, options.model, 2, 2, options.device_memory).value();
}

/// What the steps move after the first values, of both ranks.
ByteCount moved(ByteCount RunResult::*kind, ByteCount more) {
  const RunResult first = train(with_room(more, 1)), all = train(with_room(more, 4));
  EXPECT_FALSE(all.error) << all.error->message();
  EXPECT_EQ(all.above_prediction, std::vector<std::string>{});
  return all.*kind - first.*kind;
}

TEST(EngineHomes, StepsMoveTheShardsOnlyThatHaveNoHome) {
  const MemoryPlan none = plan_of(with_room(0_B, 1)), all = plan_of(with_room(64_MiB, 1));
  const ByteCount gradients = none.host_gradients + none.disk_gradients;
  const ByteCount some_room = (gradients + none.disk_shards / 2) * 2;
  const MemoryPlan some = plan_of(with_room(some_room, 1));
  ASSERT_EQ(all.home_shards, none.disk_shards);
  ASSERT_TRUE(!some.flats_at_home.empty() && some.home_shards < some.disk_shards);

  EXPECT_EQ(moved(&RunResult::bytes_read, 64_MiB), 0_B);
  EXPECT_EQ(moved(&RunResult::bytes_written, 64_MiB), 0_B);
  EXPECT_EQ(moved(&RunResult::bytes_written, some_room), some.shard_writes * 2 * 3);
  EXPECT_LE(moved(&RunResult::bytes_read, some_room),
            (some.shard_reads_max * 2 + some.update_shard_reads_max) * 2 * 3);
}

TEST(EngineHomes, GiveTheResultsOfShardsThatMove) {
  const RunResult none = train(with_room(0_B, 4)), all = train(with_room(64_MiB, 4));
  ASSERT_FALSE(none.error || all.error);
  EXPECT_GT(none.shards_written, all.shards_written);
  EXPECT_EQ(none.digest, all.digest);
  EXPECT_EQ(none.parameters, all.parameters);
}

}  // namespace
}  // namespace penstock::zero
