// Ranks whose disks differ ten times in speed: the collectives keep their order, and the bits are the same.
#include "kit/cluster.hpp"
#include "kit/process_ranks.hpp"

#include <gtest/gtest.h>
#include <chrono>
#include <memory>
#include <string>

namespace penstock::zero::test {
namespace {

using penstock::test::ProcessRanks;

tiers::SimDisk::Options disk_of(bool slow) {
  tiers::SimDisk::Options disk;
  if (slow) disk.bytes_per_second /= 10, disk.latency *= 10;
  return disk;
}

RunOptions on_disk(std::uint32_t ranks, std::uint64_t seed) {
  RunOptions options{.ranks = ranks, .steps = 4, .model = deep_model(), .seed = seed};
  options.config.offload_optimizer.device = options.config.offload_param.device = OffloadDevice::nvme;
  options.config.penstock.host_budget = smallest_host_budget(options) + seed % 3 * 400_KiB;
  return options;
}

TEST(EngineSkew, OfTheDisksChangesNoBit) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const auto ranks = static_cast<std::uint32_t>(2 + seed % 3);
    RunOptions options = on_disk(ranks, seed);
    const RunResult expected = train(options);
    ASSERT_FALSE(expected.error) << expected.error->message();
    // One slow rank, or one fast one.
    const auto odd = static_cast<std::uint32_t>(seed % ranks);
    options.disk = [seed, odd](std::uint32_t rank) { return disk_of((rank == odd) == (seed % 2 == 0)); };
    for (const bool as_processes : {false, true}) {
      ProcessRanks processes(ranks, seed);
      if (as_processes)
        options.membership = [&processes](std::uint32_t rank) { return processes.membership(rank); };
      const RunResult result = train(options);
      ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
      EXPECT_EQ(result.digest, expected.digest) << "seed " << seed << ", processes " << as_processes;
      EXPECT_EQ(result.parameters, expected.parameters) << "seed " << seed;
      EXPECT_TRUE(result.above_prediction.empty()) << result.above_prediction.front();
    }
  }
}

// The trainer takes another order of units in one step, on all ranks: what was prefetched is not what it needs.
TEST(EngineSkew, ServesAStepThatDeviates) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    RunOptions options = on_disk(2, seed);
    options.units_without_gradient = [](std::uint32_t step) {
      return step == 2 ? std::vector<std::uint32_t>{1, 4} : std::vector<std::uint32_t>();
    };
    const RunResult expected = train(options);
    ASSERT_FALSE(expected.error) << expected.error->message();
    options.disk = [seed](std::uint32_t rank) { return disk_of(rank == seed % 2); };
    const RunResult result = train(options);
    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    EXPECT_EQ(result.digest, expected.digest) << "seed " << seed;
  }
}

}  // namespace
}  // namespace penstock::zero::test
