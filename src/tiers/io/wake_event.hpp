#pragma once

#include "base/owned_fd.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>

#include <time.h>
#include <atomic>
#include <chrono>

namespace penstock::tiers {

/// What is left until `deadline`, for a call of the kernel. At most WakeEvent::wait_max.
[[nodiscard]] timespec time_left(TimePoint deadline) noexcept;

/// Wakes a driver that waits for requests: an eventfd, and a flag that says that a wake is pending.
///
/// The flag is set even where the write to the eventfd fails. Therefore no wait of an engine is longer than wait_max:
/// a lost write delays the wake, and does not lose it.
///
/// Any thread calls signal(), the driver all others.
class WakeEvent {
 public:
  static constexpr TimePoint wait_max = std::chrono::milliseconds(100);

  /// Errors: io, where the process or the machine has too many open files.
  [[nodiscard]] Result<void> open(const char* operation);

  void signal() noexcept;
  /// Whether signal() was called since the last call.
  [[nodiscard]] bool take() noexcept { return pending_.exchange(false); }

  /// Blocks until the eventfd is readable, a signal arrives, or `deadline` or wait_max has passed. Drains the eventfd.
  void wait(TimePoint deadline) noexcept;
  /// Makes the eventfd unreadable until the next signal().
  void drain() noexcept;
  /// False when the eventfd could not be drained. wait() then ignores it, and so must the engine.
  [[nodiscard]] bool usable() const noexcept { return usable_; }
  /// The eventfd, which does not block.
  [[nodiscard]] int descriptor() const noexcept { return event_.get(); }

 private:
  OwnedFd event_;
  std::atomic<bool> pending_{false};
  bool usable_ = true;
};

}  // namespace penstock::tiers
