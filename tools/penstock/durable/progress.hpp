#pragma once

#include "command.hpp"

#include <penstock/base/time.hpp>
#include <penstock/base/units.hpp>

#include <unistd.h>
#include <chrono>

namespace penstock::tool {

[[nodiscard]] inline double seconds(TimePoint time) {
  return std::chrono::duration<double>(time).count();
}

/// Shows on standard error how many of `total` bytes are done, if that is a terminal.
class Progress {
 public:
  explicit Progress(ByteCount total) : total_(total), shows_(::isatty(STDERR_FILENO) == 1) {}
  void operator()(ByteCount bytes) {
    const TimePoint now = Clock::steady().now();
    if (!shows_ || total_.is_zero() || now - printed_ < std::chrono::milliseconds(200)) return;
    printed_ = now;
    const double elapsed = seconds(now - began_),
                 left = elapsed * (double(total_.value()) / double(bytes.value()) - 1);
    fmt::print(stderr, "\r{:3.0f} %  {} of {}  {:.2f} GB/s  {:.0f} s left  ",
               100.0 * double(bytes.value()) / double(total_.value()), to_string(bytes), to_string(total_),
               double(bytes.value()) / 1e9 / elapsed, left);
  }
  ~Progress() {
    if (printed_ != TimePoint{}) fmt::print(stderr, "\n");
  }

 private:
  const ByteCount total_;
  const bool shows_;
  const TimePoint began_ = Clock::steady().now();
  TimePoint printed_{};
};

}  // namespace penstock::tool
