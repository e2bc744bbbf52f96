#pragma once

#include <chrono>

namespace penstock {

/// Time since some fixed moment: the steady clock's epoch, or tick zero of a simulation.
using TimePoint = std::chrono::nanoseconds;

/// No deadline.
inline constexpr TimePoint forever = TimePoint::max();

/// What time it is. Everything that waits takes its time from here, so that a test can hold the clock.
/// Safe from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const noexcept = 0;

  /// The steady clock of the machine.
  static const Clock& steady();
};

}  // namespace penstock
