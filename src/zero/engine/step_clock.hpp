#pragma once

#include "swap/timeline.hpp"

#include <penstock/base/time.hpp>
#include <penstock/zero/engine/engine.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace penstock::zero {

/// Takes the time of the trainer's thread in a step: from the first acquire() of a micro-batch to its first gradients()
/// is forward, from there to its last reduce() backward. A trainer that takes all micro-batches through a unit before
/// the next one has one forward and one backward.
///
/// Used by the trainer's thread, but for times().
class StepClock {
 public:
  /// `clock` outlives it, as does the timeline, which gets the parts of steps; null: none does. `waited`: how long the
  /// thread has waited so far.
  StepClock(const Clock& clock, std::function<TimePoint()> waited, swap::Timeline* timeline = nullptr)
      : clock_(clock), waited_(std::move(waited)), timeline_(timeline) {}

  void acquire() {
    if (phase_ == Phase::between) enter(Phase::forward);
  }
  void gradients() {
    if (phase_ != Phase::backward) enter(Phase::backward);
  }
  /// A unit has reduced its gradient of micro-batch `number`, counted from 1. `units`: all that do.
  void reduced(std::uint32_t number, std::size_t units) {
    if (reduced_.size() < number) reduced_.resize(number);
    if (++reduced_[number - 1] == units) enter(Phase::between);
  }
  void begin_stepping() { enter(Phase::stepping); }
  /// Ends the step, and sets the times of its outcome.
  void end(StepOutcome& outcome);
  /// The call of step() has returned an error: the time until it is repeated is none of the step.
  void interrupt() {
    enter(Phase::between);
    after_a_part_ = false;
  }
  /// The step begins, or is abandoned: what was before is no part of it.
  void restart();

  /// Without StepTimes::updating. Safe from any thread.
  [[nodiscard]] StepTimes times() const;

 private:
  enum class Phase : std::uint8_t { between, forward, backward, stepping };
  void enter(Phase phase);

  const Clock& clock_;
  const std::function<TimePoint()> waited_;
  swap::Timeline* const timeline_;
  Phase phase_ = Phase::between;
  TimePoint since_{}, waited_before_{};  // of the phase
  std::vector<std::size_t> reduced_;     // units, by micro-batch
  bool after_a_part_ = false;            // the phase is `between`, and not before the first step
  TimePoint forward_{}, backward_{}, stepping_{}, between_{}, waiting_{};  // of the step in progress
  mutable std::mutex mutex_;
  StepTimes all_;  // with the lock
};

}  // namespace penstock::zero
