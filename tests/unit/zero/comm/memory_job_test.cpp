// The control channel in memory that tests of transports use keeps the contract of JobControl.
#include "kit/memory_job.hpp"

#include <gtest/gtest.h>
#include <future>

namespace penstock::zero::test {
namespace {

using penstock::test::MemoryJob;

class MemoryJobTest : public testing::Test {
 protected:
  static std::vector<std::byte> bytes_of(std::uint32_t rank) {
    return std::vector<std::byte>(rank + 1, std::byte(rank));
  }

  std::shared_ptr<MemoryJob> job_ = std::make_shared<MemoryJob>(2);
  std::unique_ptr<JobControl> first_ = job_->control(0), second_ = job_->control(1);
};

TEST_F(MemoryJobTest, GathersTheBytesOfAllRanksInTheirOrder) {
  auto later = std::async(std::launch::async, [&] { return second_->gather("words", bytes_of(1)).value(); });

  const auto all = first_->gather("words", bytes_of(0)).value();

  EXPECT_EQ(all, (JobControl::Slots{bytes_of(0), bytes_of(1)}));
  EXPECT_EQ(later.get(), all);
}

TEST_F(MemoryJobTest, NamesTheRanksThatHaveNotCome) {
  ASSERT_TRUE(first_->start_gather("words", bytes_of(0)));

  EXPECT_FALSE(first_->poll_gather().value());
  EXPECT_EQ(first_->absent(), std::vector<std::uint32_t>{1});
  EXPECT_EQ(first_->start_gather("words", bytes_of(0)).error().code(), ErrorCode::failed_state);
}

TEST_F(MemoryJobTest, KeepsWhatWasGatheredForARankThatLooksAfterThePeersHaveGoneOn) {
  for (const auto& control : {first_.get(), second_.get()}) {
    ASSERT_TRUE(control->start_gather("words", bytes_of(control->rank())));
  }
  ASSERT_TRUE(first_->poll_gather().value());
  ASSERT_TRUE(first_->start_gather("more", bytes_of(0)));

  second_->fail(Error(ErrorCode::io, "Somewhere"));

  EXPECT_TRUE(second_->poll_gather().value());
  EXPECT_EQ(first_->poll_gather().error().code(), ErrorCode::peer_failed);
}

TEST_F(MemoryJobTest, EndsAnInterruptionWhenAllRanksRecoverAndLetsEachLookOnce) {
  ASSERT_TRUE(first_->start_gather("words", bytes_of(0)));
  second_->interrupt(Error(ErrorCode::non_finite, "Trainer"));
  EXPECT_EQ(first_->poll_gather().error().code(), ErrorCode::interrupted);
  ASSERT_TRUE(first_->start_recovery());
  EXPECT_FALSE(first_->poll_recovery().value());

  ASSERT_TRUE(second_->start_recovery());

  EXPECT_TRUE(first_->poll_recovery().value());
  EXPECT_FALSE(first_->obstacle());
  first_->interrupt(Error(ErrorCode::non_finite, "Trainer"));
  EXPECT_TRUE(second_->poll_recovery().value());
  EXPECT_EQ(second_->obstacle()->code(), ErrorCode::interrupted);
}

}  // namespace
}  // namespace penstock::zero::test
