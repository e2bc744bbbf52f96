#pragma once

#include <penstock/base/time.hpp>

#include <algorithm>
#include <chrono>

namespace penstock::zero::control {

/// The times that both ends of a control connection observe.
struct Patience {
  TimePoint join = std::chrono::minutes(5);      ///< until all ranks have come
  TimePoint silence = std::chrono::seconds(30);  ///< without a sign of life of the other end
  TimePoint gather = std::chrono::minutes(30);   ///< a rank in a gathering that blocks, for the others
  TimePoint notice =
      std::chrono::seconds(5);  ///< until a rank says for whom it waits; then twice as long, and so on
  const Clock* clock = &Clock::steady();

  /// How often an end shows that it lives.
  [[nodiscard]] TimePoint heartbeat() const { return std::min(join, silence) / 5; }
};

}  // namespace penstock::zero::control
