#include "zero/engine/step_clock.hpp"

#include <gtest/gtest.h>
#include <chrono>
#include <cstdint>
#include <thread>

namespace penstock::zero {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t units = 2;

void sleep(int ms) {
  std::this_thread::sleep_for(milliseconds(ms));
}

/// Forward and backward of two units, and the time between the two before it.
void micro_batch(StepClock& clock, std::uint32_t number, int between, int forward, int backward) {
  sleep(between);
  clock.acquire();
  clock.acquire();
  sleep(forward);
  clock.gradients();
  clock.reduced(number, units);
  clock.acquire();
  sleep(backward);
  clock.gradients();
  clock.reduced(number, units);
}

TEST(StepClock, DividesTheTimeOfAStep) {
  TimePoint waited{};
  StepClock clock([&] { return waited; });
  micro_batch(clock, 1, 50, 10, 20);
  micro_batch(clock, 2, 50, 10, 20);
  sleep(50);
  waited += milliseconds(7);  // for something else
  clock.begin_stepping();
  sleep(5);
  waited += milliseconds(3);
  StepOutcome outcome;
  clock.end(outcome);

  // Sleeps take at least their time; what is counted elsewhere would be 50 ms more.
  EXPECT_GE(outcome.forward, milliseconds(20));
  EXPECT_LT(outcome.forward, milliseconds(60));
  EXPECT_GE(outcome.backward, milliseconds(40));
  EXPECT_LT(outcome.backward, milliseconds(80));
  EXPECT_GE(outcome.stepping, milliseconds(5));
  EXPECT_LT(outcome.stepping, milliseconds(45));
  EXPECT_EQ(clock.times().steps, 1u);
  EXPECT_EQ(clock.times().forward, outcome.forward);
  EXPECT_EQ(clock.times().waiting, milliseconds(3));
}

/// Both micro-batches go through a unit before the next one.
TEST(StepClock, HasOneForwardAndOneBackwardOfATrainerThatGoesUnitByUnit) {
  StepClock clock([] { return TimePoint(); });
  clock.acquire();
  sleep(10);
  for (std::size_t unit = 0; unit < units; ++unit) {
    clock.acquire();
    for (std::uint32_t number = 1; number <= 2; ++number) {
      clock.gradients();
      sleep(10);
      clock.reduced(number, units);
    }
    if (unit == 0) sleep(50);
  }
  StepOutcome outcome;
  clock.begin_stepping();
  clock.end(outcome);

  EXPECT_LT(outcome.forward, milliseconds(50));
  EXPECT_GE(outcome.backward, milliseconds(90));
}

TEST(StepClock, ForgetsAStepThatIsAbandonedAndAddsOthers) {
  TimePoint waited{};
  StepClock clock([&] { return waited; });
  micro_batch(clock, 1, 0, 30, 30);
  clock.restart();
  StepOutcome first, second;
  for (StepOutcome* const outcome : {&first, &second}) {
    micro_batch(clock, 1, 0, 1, 1);
    clock.begin_stepping();
    clock.interrupt();
    sleep(30);
    clock.begin_stepping();
    clock.end(*outcome);
  }

  EXPECT_LT(first.forward, milliseconds(30));
  EXPECT_LT(first.stepping, milliseconds(30));
  EXPECT_EQ(clock.times().steps, 2u);
  EXPECT_EQ(clock.times().backward, first.backward + second.backward);
}

}  // namespace
}  // namespace penstock::zero
