#pragma once

#include <penstock/base/time.hpp>

#include <chrono>
#include <cstdint>
#include <string>

namespace penstock::tiers {

/// Consecutive refusals of a system call that the kernel may accept later, for example for want of memory. An engine
/// gives up when they have lasted too long.
class Refusals {
 public:
  /// Pause before the call is made again.
  static constexpr TimePoint pause = std::chrono::milliseconds(1);

  /// `time_max`: for how long refusals are tolerated. A few are tolerated regardless of the time, because two of them
  /// can be far apart without a call in between.
  explicit Refusals(TimePoint time_max) : time_max_(time_max) {}

  void reset() noexcept { count_ = 0; }
  /// Records a refusal. True when they have lasted too long.
  [[nodiscard]] bool exceeded() noexcept {
    const TimePoint now = Clock::steady().now();
    if (count_++ == 0) since_ = now;
    return count_ > count_min && now - since_ >= time_max_;
  }
  /// "refused 4711 times in a row": for messages.
  [[nodiscard]] std::string describe() const {
    return count_ > 1 ? "refused " + std::to_string(count_) + " times in a row" : "failed";
  }

 private:
  static constexpr std::uint64_t count_min = 10;
  TimePoint time_max_;
  TimePoint since_{};
  std::uint64_t count_ = 0;
};

/// The default of an engine's options: longer than a short want of memory, shorter than a request's deadline.
inline constexpr TimePoint refusal_time_max = std::chrono::seconds(10);

}  // namespace penstock::tiers
