#pragma once

#include <penstock/base/time.hpp>

#include <sys/resource.h>
#include <chrono>

namespace penstock {

/// User and system time of this process, its kernel workers included.
[[nodiscard]] inline TimePoint process_cpu_time() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto time = [](const timeval& t) {
    return TimePoint(std::chrono::seconds(t.tv_sec)) + TimePoint(std::chrono::microseconds(t.tv_usec));
  };
  return time(usage.ru_utime) + time(usage.ru_stime);
}

}  // namespace penstock
