#include "zero/engine/step_clock.hpp"

#include <gtest/gtest.h>
#include <chrono>
#include <cstdint>

namespace penstock::zero {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t units = 2;

class StepClockTest : public testing::Test, public Clock {
 public:
  [[nodiscard]] TimePoint now() const noexcept override { return now_; }

 protected:
  void pass(int ms) { now_ += milliseconds(ms); }
  /// Forward and backward of two units, and the time between the two before it.
  void micro_batch(std::uint32_t number, int between, int forward, int backward) {
    pass(between);
    clock_.acquire();
    clock_.acquire();
    pass(forward);
    clock_.gradients();
    clock_.reduced(number, units);
    clock_.acquire();
    pass(backward);
    clock_.gradients();
    clock_.reduced(number, units);
  }
  /// Ends the step.
  [[nodiscard]] StepOutcome end() {
    StepOutcome outcome;
    clock_.end(outcome);
    return outcome;
  }

  TimePoint now_{}, waited_{};
  StepClock clock_{*this, [this] { return waited_; }};
};

TEST_F(StepClockTest, DividesTheTimeOfAStep) {
  micro_batch(1, 50, 10, 20);
  micro_batch(2, 50, 10, 20);
  pass(50);
  waited_ += milliseconds(7);  // for something else
  clock_.begin_stepping();
  pass(5);
  waited_ += milliseconds(3);
  const StepOutcome outcome = end();

  EXPECT_EQ(outcome.forward, milliseconds(20));
  EXPECT_EQ(outcome.backward, milliseconds(40));
  EXPECT_EQ(outcome.stepping, milliseconds(5));
  const StepTimes all = clock_.times();
  EXPECT_EQ(all.steps, 1u);
  EXPECT_EQ(all.forward, milliseconds(20));
  EXPECT_EQ(all.between, milliseconds(50 + 50 - 7));  // of the second micro-batch, and before step()
  EXPECT_EQ(all.waiting, milliseconds(3));
}

TEST_F(StepClockTest, CountsTheTimeToTheNextStepAndNoEvaluation) {
  const auto step = [this](int before) {
    clock_.restart();
    micro_batch(1, before, 10, 20);
    clock_.begin_stepping();
    (void)end();
  };
  step(100);
  EXPECT_EQ(clock_.times().between, milliseconds(0));
  step(40);
  EXPECT_EQ(clock_.times().between, milliseconds(40));
  pass(5);
  clock_.acquire();  // of an evaluation
  pass(1000);
  step(3);
  EXPECT_EQ(clock_.times().between, milliseconds(40));
}

/// Both micro-batches go through a unit before the next one.
TEST_F(StepClockTest, HasOneForwardAndOneBackwardOfATrainerThatGoesUnitByUnit) {
  clock_.acquire();
  pass(10);
  for (std::size_t unit = 0; unit < units; ++unit) {
    clock_.acquire();
    for (std::uint32_t number = 1; number <= 2; ++number) {
      clock_.gradients();
      pass(20);
      clock_.reduced(number, units);
    }
    if (unit == 0) pass(3);
  }
  clock_.begin_stepping();
  const StepOutcome outcome = end();

  EXPECT_EQ(outcome.forward, milliseconds(10));
  EXPECT_EQ(outcome.backward, milliseconds(83));
}

TEST_F(StepClockTest, ForgetsWhatIsAbandonedAndAddsSteps) {
  micro_batch(1, 0, 30, 30);
  clock_.restart();
  for (int i = 0; i < 2; ++i) {
    micro_batch(1, 0, 1, 2);
    clock_.begin_stepping();
    pass(4);
    clock_.interrupt();  // an error, after which the call is repeated
    pass(30);
    clock_.begin_stepping();
    pass(4);
    EXPECT_EQ(end().stepping, milliseconds(8));
  }

  EXPECT_EQ(clock_.times().steps, 2u);
  EXPECT_EQ(clock_.times().forward, milliseconds(2));
  EXPECT_EQ(clock_.times().backward, milliseconds(4));
}

}  // namespace
}  // namespace penstock::zero
