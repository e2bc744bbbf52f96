#include "tiers/io/running_time.hpp"

#include <gtest/gtest.h>

namespace penstock::tiers {
namespace {

using std::chrono::seconds;

/// A clock that may also be set back.
class TestClock final : public Clock {
 public:
  TimePoint now() const noexcept override { return time; }
  TimePoint time = seconds(100);
};

TEST(RunningTime, CountsAtMostOneStepBetweenTwoUpdates) {
  TestClock clock;
  RunningTime running(clock, seconds(1));
  const TimePoint begin = running.elapsed();

  clock.time += std::chrono::milliseconds(700);
  EXPECT_EQ(running.update(), clock.time);
  EXPECT_EQ(running.elapsed() - begin, std::chrono::milliseconds(700));
  clock.time += seconds(500);
  EXPECT_EQ(running.update(), clock.time);
  EXPECT_EQ(running.elapsed() - begin, std::chrono::milliseconds(1700));
}

TEST(RunningTime, StandsStillWhileItsClockIsSetBack) {
  TestClock clock;
  RunningTime running(clock, seconds(1));
  const TimePoint begin = running.elapsed();

  clock.time -= seconds(50);
  (void)running.update();
  EXPECT_EQ(running.elapsed(), begin);
  clock.time += std::chrono::milliseconds(300);
  (void)running.update();
  EXPECT_EQ(running.elapsed() - begin, std::chrono::milliseconds(300));
}

TEST(RunningTime, AsksForAnUpdateWithinAStepAndNotAfterTheWantedTime) {
  TestClock clock;
  RunningTime running(clock, seconds(1));
  const TimePoint begin = running.elapsed();

  EXPECT_EQ(running.next_update(begin + seconds(10)), clock.time + seconds(1));
  EXPECT_EQ(running.next_update(begin + std::chrono::milliseconds(10)),
            clock.time + std::chrono::milliseconds(10));
  EXPECT_EQ(running.next_update(begin - seconds(1)), clock.time);
  EXPECT_EQ(running.next_update(forever), clock.time + seconds(1));
}

TEST(RunningTime, TakesStepsOfASixtyFourthOfADeadline) {
  EXPECT_EQ(running_time_step(seconds(16)), std::chrono::milliseconds(250));
  EXPECT_EQ(running_time_step(forever), seconds(1));
  EXPECT_EQ(running_time_step(std::chrono::milliseconds(1)), std::chrono::milliseconds(1));
}

}  // namespace
}  // namespace penstock::tiers
