// A trainer abandons steps, for example after an exception in a forward or backward.
#include "kit/cluster.hpp"
#include "kit/seeds.hpp"

#include <gtest/gtest.h>
#include <optional>
#include <string>

namespace penstock::zero::test {
namespace {

using Point = RunOptions::ProgramPoint;

RunOptions on_disk(std::uint32_t ranks, std::uint64_t seed) {
  RunOptions options{.ranks = ranks, .seed = seed};
  options.config.offload_optimizer.device = OffloadDevice::nvme;
  options.config.offload_param.device = OffloadDevice::nvme;
  return options;
}

void expect_as_without(const RunOptions& abandoning, const RunResult& expected, std::size_t abandoned,
                       const std::string& what) {
  const RunResult result = train(abandoning);
  ASSERT_FALSE(result.error) << what << ": " << result.error->message();
  EXPECT_EQ(result.interruptions.size(), abandoned) << what;
  EXPECT_EQ(result.digest, expected.digest) << what;
  EXPECT_EQ(result.parameters, expected.parameters) << what;
  EXPECT_TRUE(result.above_prediction.empty()) << what << ": " << result.above_prediction.front();
}

TEST(EngineAbandon, AtEveryPointOfOneRankLeavesNoTrace) {
  const RunResult expected = train(on_disk(2, 1));
  ASSERT_FALSE(expected.error);
  constexpr std::uint32_t units = 3, micro_batches = 2;
  std::uint64_t seed = 1;
  const auto abandon_at = [&](const Point& at) {
    RunOptions options = on_disk(2, ++seed);
    options.trainer_error = [at](const Point& point) -> std::optional<ErrorCode> {
      const bool here = point.step == 1 && point.attempt == 0 && point.rank == at.rank &&
                        point.place == at.place && point.micro_batch == at.micro_batch &&
                        point.unit == at.unit;
      return here ? std::optional(ErrorCode::interrupted) : std::nullopt;
    };
    expect_as_without(options, expected, 2,
                      "rank " + std::to_string(at.rank) + ", micro-batch " + std::to_string(at.micro_batch) +
                          ", unit " + std::to_string(at.unit) + ", place " +
                          std::to_string(static_cast<int>(at.place)));
  };
  for (const std::uint32_t rank : {0u, 1u}) {
    for (std::uint32_t micro = 0; micro < micro_batches; ++micro) {
      for (std::uint32_t unit = 0; unit < units; ++unit) {
        for (const auto place :
             {Point::Place::forward, Point::Place::backward, Point::Place::gradients_written}) {
          abandon_at({.rank = rank, .micro_batch = micro, .unit = unit, .place = place});
        }
      }
    }
    abandon_at({.rank = rank, .micro_batch = micro_batches, .unit = 0, .place = Point::Place::before_step});
  }
}

/// Every rank abandons where a seed says, with several attempts of one step.
RunOptions random_abandons(std::uint32_t ranks, std::uint64_t seed) {
  RunOptions options = on_disk(ranks, seed);
  options.steps = 4;
  options.model = seed % 2 == 0 ? small_model() : deep_model();
  options.trainer_error = abandons_anywhere(seed);
  return options;
}

TEST(EngineAbandon, AnywhereOnAnyRanksLeavesNoTrace) {
  std::size_t abandoned = 0;
  for (const std::uint64_t seed : penstock::test::seeds(0, 24)) {
    RunOptions options = random_abandons(1 + seed % 4, seed);
    const RunResult result = train(options);
    ASSERT_FALSE(result.error) << seed << ": " << result.error->message();
    abandoned += result.interruptions.size();
    options.trainer_error = nullptr;
    const RunResult expected = train(options);
    EXPECT_EQ(result.digest, expected.digest) << seed;
    EXPECT_EQ(result.parameters, expected.parameters) << seed;
  }
  EXPECT_GT(abandoned, 50u);
}

TEST(EngineAbandon, LeavesNoTraceOnThreadsAndRealDisks) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    RunOptions options = random_abandons(3, seed);
    options.seed.reset();
    options.threads = 2;
    const RunResult result = train(options);
    ASSERT_FALSE(result.error) << seed << ": " << result.error->message();
    options.trainer_error = nullptr;
    EXPECT_EQ(result.digest, train(options).digest) << seed;
  }
}

TEST(EngineAbandon, IsRefusedWhileALeaseIsHeld) {
  RunOptions options = on_disk(1, 3);
  options.steps = 1;
  tiers::Stream* stream = nullptr;
  options.before_initialize = [&](Engine&, tiers::Stream& of_rank) { stream = &of_rank; };
  options.after_steps = [&](Engine& engine) -> Result<void> {
    {
      const auto lease = engine.acquire(0, *stream).value();
      const auto refused = engine.abandon_step(*stream);
      EXPECT_EQ(refused.error().code(), ErrorCode::failed_state);
      EXPECT_NE(refused.error().message().find("UnitLease"), std::string::npos) << refused.error().message();
      EXPECT_EQ(engine.status(), Engine::Status::ready);
    }
    return engine.abandon_step(*stream);  // with nothing to abandon
  };
  const RunResult result = train(options);
  ASSERT_FALSE(result.error) << result.error->message();
}

TEST(EngineAbandon, TellsThePeersWhy) {
  RunOptions options = on_disk(3, 9);
  options.trainer_error = [](const Point& point) -> std::optional<ErrorCode> {
    const bool here = point.rank == 1 && point.step == 1 && point.attempt == 0;
    return here && point.place == Point::Place::backward ? std::optional(ErrorCode::interrupted)
                                                         : std::nullopt;
  };
  const RunResult result = train(options);
  ASSERT_FALSE(result.error) << result.error->message();
  ASSERT_EQ(result.interruptions.size(), 3u);
  for (const std::uint32_t peer : {0u, 2u}) {
    const std::string& message = result.interruptions[peer];
    for (const char* part : {"rank 1", "the loss is NaN"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  }
}

TEST(EngineAbandon, FailsWhenAPeerLeavesInstead) {
  RunOptions options = on_disk(2, 9);
  options.trainer_error = [](const Point& point) -> std::optional<ErrorCode> {
    if (point.step != 1 || point.place != Point::Place::backward) return std::nullopt;
    return point.rank == 0 ? ErrorCode::interrupted : ErrorCode::not_found;
  };
  const RunResult result = train(options);
  ASSERT_TRUE(result.error);
  EXPECT_EQ(result.error->code(), ErrorCode::not_found) << result.error->message();
}

}  // namespace
}  // namespace penstock::zero::test
