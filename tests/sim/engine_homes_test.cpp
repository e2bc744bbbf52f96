// Parameter shards and tiles that have a place on disk, and their home in host memory.
#include "kit/cluster.hpp"

#include <gtest/gtest.h>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

/// What is on disk; the other one is in memory.
struct OnDisk {
  OffloadDevice shards, tiles;
};
constexpr OnDisk shards_on_disk = {OffloadDevice::nvme, OffloadDevice::cpu},
                 tiles_on_disk = {OffloadDevice::cpu, OffloadDevice::nvme},
                 both_on_disk = {OffloadDevice::nvme, OffloadDevice::nvme};

/// Two ranks with `more` host memory than is needed.
RunOptions with_room(const OnDisk& on_disk, ByteCount more, std::uint32_t steps) {
  RunOptions options{.ranks = 2, .steps = steps, .model = deep_model(), .seed = 5};
  options.config.offload_param.device = on_disk.shards;
  options.config.offload_optimizer.device = on_disk.tiles;
  options.config.offload_param.pin_memory = options.config.offload_optimizer.pin_memory = false;
  options.config.penstock.tile_elements = ElementCount(16384);
  options.config.penstock.tiles_in_flight = 1;
  options.config.penstock.host_budget = smallest_host_budget(options) + more;
  return options;
}

MemoryPlan plan_of(RunOptions options) {
  options.config.offload_param.nvme_paths = options.config.offload_optimizer.nvme_paths = {"."};
  return plan_memory(options.config, options.model, 2, 2, options.device_memory).value();
}

struct Moved {
  ByteCount read, written;
};
/// What three steps move after the first one, of both ranks.
Moved moved(const OnDisk& on_disk, ByteCount more) {
  const RunResult first = train(with_room(on_disk, more, 1)), all = train(with_room(on_disk, more, 4));
  EXPECT_FALSE(all.error) << all.error->message();
  EXPECT_EQ(all.above_prediction, std::vector<std::string>{});
  return {all.bytes_read - first.bytes_read, all.bytes_written - first.bytes_written};
}

TEST(EngineHomes, OfEverythingLeaveNothingToMove) {
  for (const OnDisk& on_disk : {shards_on_disk, tiles_on_disk, both_on_disk}) {
    const MemoryPlan plan = plan_of(with_room(on_disk, 64_MiB, 1));
    ASSERT_EQ(plan.homes(), plan.disk_shards + plan.disk_tiles);
    ASSERT_FALSE(plan.homes().is_zero());
    const Moved bytes = moved(on_disk, 64_MiB);
    EXPECT_EQ(bytes.read, 0_B);
    EXPECT_EQ(bytes.written, 0_B);
  }
}

TEST(EngineHomes, OfSomeShardsLeaveTheOthersToMove) {
  const MemoryPlan none = plan_of(with_room(shards_on_disk, 0_B, 1));
  const ByteCount room = (none.host_gradients + none.disk_gradients + none.disk_shards / 2) * 2;
  const MemoryPlan some = plan_of(with_room(shards_on_disk, room, 1));
  ASSERT_TRUE(!some.flats_at_home.empty() && some.home_shards < some.disk_shards);

  const Moved bytes = moved(shards_on_disk, room);

  EXPECT_EQ(bytes.written, some.shard_writes * 2 * 3);
  EXPECT_LE(bytes.read, (some.shard_reads_max * 2 + some.update_shard_reads_max) * 2 * 3);
}

TEST(EngineHomes, OfSomeTilesLeaveTheOthersToMove) {
  ByteCount room;
  MemoryPlan some;
  while (some.home_tiles.is_zero()) some = plan_of(with_room(tiles_on_disk, room += 512_KiB, 1));
  ASSERT_LT(some.home_tiles, some.disk_tiles);

  const Moved bytes = moved(tiles_on_disk, room);

  EXPECT_EQ(bytes.written, (some.disk_tiles - some.home_tiles) * 2 * 3);
  EXPECT_GE(bytes.read, some.tile_reads * 2 * 3);
  EXPECT_LE(bytes.read, (some.tile_reads + some.tile_rereads_max) * 2 * 3);
}

TEST(EngineHomes, GiveTheResultsOfWhatMoves) {
  for (const OnDisk& on_disk : {shards_on_disk, tiles_on_disk, both_on_disk}) {
    const RunResult none = train(with_room(on_disk, 0_B, 4)), all = train(with_room(on_disk, 64_MiB, 4));
    ASSERT_FALSE(none.error || all.error);
    EXPECT_GT(none.bytes_written, all.bytes_written);
    EXPECT_EQ(none.digest, all.digest);
    EXPECT_EQ(none.parameters, all.parameters);
  }
}

/// What rank 0 writes from one step's begin to the next one's; its memory has `limit(step, runtime)` from there on.
template <class Limit>
std::vector<ByteCount> written_by_step(RunOptions options, const Limit& limit, std::string& digest) {
  std::vector<ByteCount> written;
  ByteCount before;
  options.before_step = [&](std::uint32_t step, std::uint32_t rank, swap::Runtime& runtime) {
    if (rank != 0) return;
    const ByteCount now = runtime.ledger().traffic().written;
    if (step > 0) written.push_back(now - before);
    before = now;
    EXPECT_TRUE(runtime.limit_memory(limit(step, runtime)));
  };
  const RunResult result = train(options);
  EXPECT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
  digest = result.digest;
  return written;
}

TEST(EngineHomes, ThatHaveLeftTheMemoryAreVerifiedWhenTheyAreRead) {
  RunOptions options = with_room(tiles_on_disk, 64_MiB, 3);
  options.before_step = [](std::uint32_t step, std::uint32_t, swap::Runtime& runtime) {
    if (step == 1) runtime.limit_memory(runtime.memory_least()).value();
  };
  options.faults = {{.operation = tiers::IoOperation::read,
                     .count = 1000,
                     .effect = tiers::Fault::Effect::flip_bit,
                     .bit = 4321}};

  const RunResult result = train(options);

  ASSERT_TRUE(result.error);
  EXPECT_EQ(result.error->code(), ErrorCode::corrupted) << result.error->message();
  EXPECT_NE(result.error->message().find("optimizer tile"), std::string::npos) << result.error->message();
}

TEST(EngineHomes, GiveWayToALimitOfTheMemoryAndComeBackAfterIt) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunOptions options = with_room(both_on_disk, 64_MiB, 10);
    options.seed = seed;
    options.config.penstock.tiles_in_flight = 1 + static_cast<std::uint32_t>(seed % 4);
    const MemoryPlan plan = plan_of(options);
    std::string limited, free;
    const auto none = written_by_step(
        options, [&](std::uint32_t, swap::Runtime&) { return plan.host_budget; }, free);

    const auto written = written_by_step(
        options,
        [&](std::uint32_t step, swap::Runtime& runtime) {
          if (step < 2 || step >= 6) return plan.host_budget;
          return step < 4 && seed % 2 == 0 ? plan.host_budget - plan.homes() / 4 : runtime.memory_least();
        },
        limited);

    EXPECT_EQ(limited, free);
    EXPECT_EQ(none, std::vector<ByteCount>(9));
    ASSERT_EQ(written.size(), 9u);
    EXPECT_EQ(written[1], 0_B);
    EXPECT_GT(written[3], 0_B);
    if (seed % 2 == 0) {
      EXPECT_LT(written[3], plan.homes() / 2);  // three quarters have their home still
    }
    EXPECT_GT(written[5], plan.disk_tiles);
    EXPECT_EQ(written[8], 0_B);
  }
}

}  // namespace
}  // namespace penstock::zero::test
