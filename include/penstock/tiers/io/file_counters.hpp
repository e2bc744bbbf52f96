#pragma once

#include <penstock/base/time.hpp>
#include <penstock/base/units.hpp>

#include <array>
#include <cstdint>

namespace penstock::tiers {

/// A histogram of durations, in buckets whose bounds grow by a quarter of an octave (19 %), from 1 µs to 67 s.
class LatencyHistogram {
 public:
  void record(TimePoint duration) noexcept { ++counts_[bucket(duration)]; }

  [[nodiscard]] std::uint64_t count() const noexcept;
  /// The upper bound of the bucket that contains the quantile `fraction`, such as 0.99; zero for an empty histogram.
  [[nodiscard]] TimePoint percentile(double fraction) const noexcept;

  LatencyHistogram& operator+=(const LatencyHistogram& other) noexcept;
  /// Subtracts `earlier`, a previous state of this histogram.
  LatencyHistogram& operator-=(const LatencyHistogram& earlier) noexcept;

 private:
  static constexpr int octaves = 26, steps = 4;
  [[nodiscard]] static std::size_t bucket(TimePoint duration) noexcept;

  std::array<std::uint64_t, octaves * steps> counts_{};
};

/// Traffic, retries and latency of a file.
struct FileCounters {
  ByteCount bytes_read, bytes_written;
  std::uint64_t requests = 0;
  std::uint64_t retries = 0;          ///< requests repeated after a transient error
  std::uint64_t short_transfers = 0;  ///< requests that moved fewer bytes than asked
  std::uint64_t subdivided = 0;       ///< requests that were cut in two after EIO
  LatencyHistogram latency;           ///< from a request's submission until its completion is reaped

  FileCounters& operator+=(const FileCounters& other) noexcept;
  /// Subtracts `earlier`, a previous state of these counters.
  FileCounters& operator-=(const FileCounters& earlier) noexcept;
};

}  // namespace penstock::tiers
