#include "unit/zero/report/reported_rank.hpp"

#include <penstock/zero/comm/in_process_group.hpp>

#include <gtest/gtest.h>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace penstock::zero {
namespace {

using penstock::test::ScratchDirectory;
using test::initialized;
using test::options;
using test::step;

TEST(RankEndurance, RefusesTheStepThatWouldExceedTheCap) {
  const ScratchDirectory scratch;
  Rank::Options capped = options(scratch);
  capped.config.penstock.path_endurance = {8_MiB};
  capped.config.penstock.endurance_cap = 0.5;
  capped.config.penstock.endurance_warning = 0.25;
  const auto rank = initialized(std::move(capped));

  int steps = 0;
  Result<StepOutcome> outcome = step(*rank);
  for (; outcome && steps < 100; ++steps) outcome = step(*rank);

  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code(), ErrorCode::no_space);
  EXPECT_NE(outcome.error().message().find("penstock.endurance_cap"), std::string::npos)
      << outcome.error().message();
  EXPECT_GE(steps, 2);
  EXPECT_EQ(rank->engine().status(), Engine::Status::ready);
  ASSERT_TRUE(rank->engine().finish_update());
  ASSERT_TRUE(rank->runtime().flush());
  // As near as a step comes to it.
  const ByteCount written = rank->runtime().paths()[0].counters.bytes_written;
  EXPECT_LE(written, 4_MiB);
  EXPECT_GT(written, 4_MiB - rank->plan().tile_writes - rank->plan().tile_writes);
  const auto messages = rank->runtime().take_messages();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_NE(messages[0].find("penstock.path_endurance"), std::string::npos) << messages[0];
}

TEST(RankEndurance, RefusesTheFirstStepAfterFirstValuesThatExceedTheCap) {
  const ScratchDirectory scratch;
  Rank::Options capped = options(scratch);
  capped.config.penstock.path_endurance = {1_MiB};
  capped.config.penstock.endurance_cap = 0;
  const auto rank = initialized(std::move(capped));
  const auto written = [&] {
    EXPECT_TRUE(rank->runtime().flush());
    return rank->runtime().paths()[0].counters.bytes_written;
  };
  const ByteCount before = written();
  const auto digest = rank->engine().digest().value();

  for (int i = 0; i < 2; ++i) {
    const auto outcome = step(*rank);
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code(), ErrorCode::no_space);
  }

  EXPECT_EQ(rank->engine().completed_steps(), 0u);
  EXPECT_EQ(written(), before);
  EXPECT_EQ(rank->engine().digest().value(), digest);
}

TEST(RankEndurance, EndsTheRunOfAllRanks) {
  constexpr std::uint32_t ranks = 2;
  const ScratchDirectory scratch;
  const Rank::Options given = options(scratch);
  auto group = InProcessGroup::create(ranks).value();
  std::vector<std::string> errors(ranks);
  std::vector<int> steps(ranks);
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Rank::Options mine = given;
      mine.identity = RankIdentity::local(r, ranks);
      mine.group = in_process_membership(group, r);
      mine.config.penstock.path_endurance = {r == 1 ? 4_MiB : 1024_GiB};  // both have half of it
      mine.config.penstock.endurance_cap = 1;
      const auto rank = initialized(std::move(mine));
      while (steps[r] < 100) {
        const auto outcome = step(*rank);
        if (!outcome) {
          errors[r] = outcome.error().message();
          return;
        }
        ++steps[r];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(steps[0], steps[1]);
  EXPECT_NE(errors[0].find("rank 1 has reached it"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("this rank's part of the endurance is 2.0 MiB"), std::string::npos) << errors[1];
}

}  // namespace
}  // namespace penstock::zero
