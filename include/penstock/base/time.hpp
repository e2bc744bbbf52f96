#pragma once

#include <chrono>

namespace penstock {

/// A time in nanoseconds: a duration, or the time since a fixed moment, which is the steady clock's epoch or the start
/// of a simulation.
using TimePoint = std::chrono::nanoseconds;

/// No deadline.
inline constexpr TimePoint forever = TimePoint::max();

/// A clock. Deadlines of requests and simulated delays are measured with it, so that a test can control time. Safe from
/// any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const noexcept = 0;

  /// The steady clock of the machine.
  static const Clock& steady();
};

}  // namespace penstock
