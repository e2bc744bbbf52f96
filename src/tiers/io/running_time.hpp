#pragma once

#include <penstock/base/time.hpp>

#include <algorithm>
#include <chrono>

namespace penstock::tiers {

/// The time in which its thread could observe a request: between two calls of update() at most `step_max` counts.
///
/// A process that is stopped (SIGSTOP, a paused virtual machine), that gets no CPU, or whose clock jumps cannot know
/// whether a request has completed in that time. A thread that waits calls update() at least every `step_max`.
/// Used by one thread.
class RunningTime {
 public:
  RunningTime(const Clock& clock, TimePoint step_max)
      : clock_(&clock), step_max_(step_max), last_(clock.now()) {}

  /// Reads the clock and returns its time.
  TimePoint update() noexcept {
    const TimePoint now = clock_->now();
    // A clock that is set back counts as one that stands still.
    lost_ += now - last_ - std::clamp(now - last_, TimePoint::zero(), step_max_);
    return last_ = now;
  }
  /// The running time as of the last update().
  [[nodiscard]] TimePoint elapsed() const noexcept { return last_ - lost_; }
  /// The running time when `wait` will have elapsed.
  [[nodiscard]] TimePoint end_of(TimePoint wait) const noexcept {
    return wait >= forever - elapsed() ? forever : elapsed() + wait;
  }
  /// The time on the clock at which update() must be called again, and at which at most `wanted` has elapsed.
  [[nodiscard]] TimePoint next_update(TimePoint wanted) const noexcept {
    return last_ + std::clamp(wanted - elapsed(), TimePoint::zero(), step_max_);
  }

 private:
  const Clock* clock_;
  TimePoint step_max_;
  TimePoint last_;
  TimePoint lost_{};  // time on the clock that does not count
};

/// A step for `deadline`: short, because a stop may count as one step in full, but seldom more than one a second.
[[nodiscard]] constexpr TimePoint running_time_step(TimePoint deadline) noexcept {
  return std::clamp<TimePoint>(deadline / 64, std::chrono::milliseconds(1), std::chrono::seconds(1));
}

}  // namespace penstock::tiers
