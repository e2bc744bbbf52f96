// A rank that does not come into a collective: its peers wait until the group's deadline, and no longer.
#include "conformance/communicator_conformance.hpp"

#include <penstock/tiers/io/sim_disk.hpp>

#include <gtest/gtest.h>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr TimePoint deadline = seconds(10);

class CommunicatorDeadline : public testing::TestWithParam<Factory> {
 protected:
  void SetUp() override {
    for (std::uint32_t r = 0; r < 3; ++r) {
      streams_.push_back(device_.create_stream().value());
      flats_.push_back(device_.allocate(12_KiB).value());
    }
  }
  /// The ranks that join the group.
  void join(std::uint32_t count) {
    for (std::uint32_t r = 0; r < count; ++r) ranks_.push_back(join_(r, device_, *compute_));
  }
  Result<void> gather(std::uint32_t r) {
    return ranks_[r]->start_all_gather(*streams_[r], flats_[r], {.unit = 3, .step = 7});
  }
  /// Polls `r` every 50 ms for `time`; stops at an error.
  Result<bool> poll_for(std::uint32_t r, TimePoint time) {
    Result<bool> outcome = ranks_[r]->poll();
    for (TimePoint waited{}; outcome && !*outcome && waited < time; waited += milliseconds(50)) {
      clock_.advance_to(clock_.now() + milliseconds(50));
      outcome = ranks_[r]->poll();
    }
    return outcome;
  }
  void complete() {
    for (bool all = false; !all;) {
      all = true;
      for (const auto& rank : ranks_) {
        const auto completed = rank->poll();
        ASSERT_TRUE(completed) << completed.error().message();
        all = *completed && all;
      }
    }
  }
  static void expect_deadline(const Error& error, const std::string& missing) {
    EXPECT_EQ(error.code(), ErrorCode::deadline_exceeded);
    EXPECT_NE(error.message().find(missing), std::string::npos) << error.message();
  }

  tiers::SimClock clock_;
  tiers::HostDevice device_{{.memory = 1_MiB}};
  std::unique_ptr<Compute> compute_ = kernels::make_host_compute();
  std::vector<std::unique_ptr<tiers::Stream>> streams_;
  std::vector<DeviceSpan> flats_;
  Join join_ = GetParam().make_group(3, /*seed=*/1, {.deadline = deadline, .clock = &clock_});
  std::vector<std::unique_ptr<Communicator>> ranks_;
};

TEST_P(CommunicatorDeadline, NamesTheRanksThatDoNotComeAndThoseThatNeverJoined) {
  join(2);
  ASSERT_TRUE(gather(0));

  EXPECT_FALSE(poll_for(0, deadline - milliseconds(100)).value());
  const auto late = poll_for(0, seconds(1));

  ASSERT_FALSE(late);
  expect_deadline(late.error(), "rank 1, rank 2");
  EXPECT_EQ(late.error().message().find("rank 2 (has not joined the group)") != std::string::npos,
            GetParam().name == in_process.name);  // processes come together before they join
  EXPECT_NE(late.error().message().find("all-gather of parameters of unit 3"), std::string::npos)
      << late.error().message();
}

TEST_P(CommunicatorDeadline, FailsEveryRankOfTheGroupTheLateOneToo) {
  join(3);
  ASSERT_TRUE(gather(0));
  ASSERT_TRUE(gather(1));
  ASSERT_FALSE(poll_for(0, deadline + seconds(1)));

  expect_deadline(ranks_[1]->poll().error(), "rank 2 did not come");
  expect_deadline(gather(2).error(), "rank 2 did not come");
}

TEST_P(CommunicatorDeadline, DoesNotCountTheTimeInWhichTheProcessWasStopped) {
  join(3);
  ASSERT_TRUE(gather(0));
  EXPECT_FALSE(poll_for(0, deadline / 2).value());

  clock_.advance_to(clock_.now() + std::chrono::hours(5));

  EXPECT_FALSE(poll_for(0, deadline / 4).value());
  ASSERT_TRUE(gather(1));
  ASSERT_TRUE(gather(2));
  complete();
}

TEST_P(CommunicatorDeadline, CountsEachCollectiveFromItsStart) {
  join(3);
  for (int round = 0; round < 4; ++round) {
    for (std::uint32_t r = 0; r < 2; ++r) ASSERT_TRUE(gather(r));
    EXPECT_FALSE(poll_for(0, deadline / 2).value());
    ASSERT_TRUE(gather(2));
    complete();
  }
}

TEST_P(CommunicatorDeadline, EndsARecoveryToWhichARankDoesNotCome) {
  join(3);
  ranks_[0]->interrupt(Error::invalid_argument("test"));
  ASSERT_TRUE(ranks_[0]->start_recovery(*streams_[0]));
  ASSERT_TRUE(ranks_[1]->start_recovery(*streams_[1]));

  const auto late = poll_for(0, deadline + seconds(1));

  ASSERT_FALSE(late);
  expect_deadline(late.error(), "recovery");
  expect_deadline(late.error(), "rank 2 did not come");
  expect_deadline(ranks_[1]->poll().error(), "rank 2 did not come");
}

TEST_P(CommunicatorDeadline, WaitsWithoutEndIfThereIsNone) {
  join_ = GetParam().make_group(3, /*seed=*/1, {.deadline = forever, .clock = &clock_});
  join(3);
  ASSERT_TRUE(gather(0));

  EXPECT_FALSE(poll_for(0, deadline * 10).value());
}

INSTANTIATE_TEST_SUITE_P(Everywhere, CommunicatorDeadline, testing::Values(in_process, processes),
                         [](const auto& setting) { return setting.param.name; });

}  // namespace
}  // namespace penstock::zero::test
