#pragma once

#include <penstock/base/time.hpp>

#include <chrono>
#include <string>

namespace penstock {

/// "60 s", "1500 ms", "20 ns": in the largest of these units in which it is a whole number.
inline std::string duration_text(TimePoint duration) {
  using namespace std::chrono;
  if (duration % seconds(1) == TimePoint::zero()) return std::to_string(duration / seconds(1)) + " s";
  if (duration % milliseconds(1) == TimePoint::zero())
    return std::to_string(duration / milliseconds(1)) + " ms";
  return std::to_string(duration.count()) + " ns";
}

}  // namespace penstock
