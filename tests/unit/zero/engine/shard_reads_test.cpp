#include "zero/engine/shard_reads.hpp"

#include <gtest/gtest.h>
#include <vector>

namespace penstock::zero {
namespace {

constexpr std::uint32_t units = 3;
constexpr ByteCount shard = 4_KiB;

/// Three units, each with one shard on disk.
MemoryPlan on_disk(bool gradients_on_disk = false) {
  MemoryPlan plan;
  plan.shards_on_disk = true;
  plan.gradients_on_disk = gradients_on_disk;
  plan.disk_shards = shard * units;
  plan.shard_reads_max = plan.disk_shards * (gradients_on_disk ? 4 : 2);
  return plan;
}

/// What is predicted of units that are acquired and gathered.
ByteCount use(ShardReads& reads, const std::vector<std::uint32_t>& order) {
  ByteCount predicted;
  for (const std::uint32_t unit : order) {
    reads.acquire(unit);
    predicted += reads.gather(shard);
  }
  return predicted;
}
/// What is predicted of a step of one micro-batch.
ByteCount step(ShardReads& reads, const std::vector<std::uint32_t>& order) {
  reads.begin_step();
  const ByteCount gathers = use(reads, order);
  return gathers + reads.end_step(1);
}

TEST(ShardReads, AreThoseOfThePlanInTheRehearsedOrder) {
  for (const bool gradients_on_disk : {false, true}) {
    const MemoryPlan plan = on_disk(gradients_on_disk);
    ShardReads reads(plan, units);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(step(reads, {0, 1, 2, 2, 1, 0}), plan.shard_reads_max);
    EXPECT_EQ(step(reads, {}), plan.shard_reads_max) << "nothing was dropped from the device";
  }
}

TEST(ShardReads, AreTwoOfEachGatherInAnotherOrderAndInTheStepAfterIt) {
  const MemoryPlan plan = on_disk();
  ShardReads reads(plan, units);
  EXPECT_EQ(step(reads, {0, 1, 2, 0, 2, 1, 0}), shard * 14);
  EXPECT_EQ(step(reads, {0, 1, 2, 2, 1, 0}), shard * 12);
  EXPECT_EQ(step(reads, {0, 1, 2, 2, 1, 0}), shard * 6);
}

TEST(ShardReads, OfAnEvaluationAreBesideThoseOfTheStep) {
  const MemoryPlan plan = on_disk();
  ShardReads reads(plan, units);
  EXPECT_EQ(use(reads, {0, 1, 2}), shard * 3);

  EXPECT_EQ(step(reads, {0, 1, 2, 2, 1, 0}), shard * (18 - 3));
}

}  // namespace
}  // namespace penstock::zero
