// Ranks that are processes: the engine's collectives move bytes through streams, and give the bits of ranks in one
// process. One thread runs all of them, in an order chosen by a seed.
#include "kit/cluster.hpp"
#include "kit/process_ranks.hpp"
#include "kit/seeds.hpp"

#include <gtest/gtest.h>
#include <memory>
#include <string>

namespace penstock::zero::test {
namespace {

using penstock::test::ProcessRanks;
using Point = RunOptions::ProgramPoint;

RunOptions on_disk(std::uint32_t ranks, std::uint64_t seed) {
  RunOptions options{.ranks = ranks, .model = seed % 2 == 0 ? small_model() : deep_model(), .seed = seed};
  options.config.offload_optimizer.device = OffloadDevice::nvme;
  options.config.offload_param.device = OffloadDevice::nvme;
  options.config.penstock.host_budget = smallest_host_budget(options) + seed % 3 * 512_KiB;
  return options;
}

RunResult train_as_processes(RunOptions options) {
  ProcessRanks processes(options.ranks, *options.seed);
  options.membership = [&processes](std::uint32_t rank) { return processes.membership(rank); };
  return train(options);
}

TEST(EngineProcesses, GiveTheBitsOfRanksInOneProcess) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 24)) {
    const auto ranks = static_cast<std::uint32_t>(2 + seed / 2 % 3);
    const RunOptions options = on_disk(ranks, seed);
    const RunResult expected = train(options), result = train_as_processes(options);
    ASSERT_FALSE(expected.error) << expected.error->message();
    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    ASSERT_EQ(result.digest, expected.digest) << "seed " << seed;
    ASSERT_EQ(result.parameters, expected.parameters) << "seed " << seed;
  }
}

TEST(EngineProcesses, GoOnAfterAbandonedSteps) {
  std::size_t abandoned = 0;
  for (const std::uint64_t seed : penstock::test::seeds(0, 12)) {
    RunOptions options = on_disk(2 + seed % 3, seed);
    const RunResult expected = train(options);
    options.trainer_error = abandons_anywhere(seed);
    const RunResult result = train_as_processes(options);
    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    ASSERT_EQ(result.digest, expected.digest) << "seed " << seed;
    abandoned += result.interruptions.size();
  }
  EXPECT_GT(abandoned, 10u);
}

TEST(EngineProcesses, EndWithTheErrorOfTheRankThatLeaves) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 12)) {
    RunOptions options = on_disk(3, seed);
    const auto leaves = static_cast<std::uint32_t>(seed % 3);
    options.trainer_error = [seed, leaves](const Point& point) -> std::optional<ErrorCode> {
      const bool here = point.rank == leaves && point.step == 1 && point.unit == seed % 2 &&
                        point.place == (seed % 4 < 2 ? Point::Place::forward : Point::Place::backward);
      return here ? std::optional(ErrorCode::no_space) : std::nullopt;
    };
    const RunResult result = train_as_processes(options);
    ASSERT_TRUE(result.error) << "seed " << seed;
    EXPECT_EQ(result.error->code(), ErrorCode::no_space) << result.error->message();
  }
}

}  // namespace
}  // namespace penstock::zero::test
