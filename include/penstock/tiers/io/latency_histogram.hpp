#pragma once

#include <penstock/base/time.hpp>

#include <array>
#include <cstdint>

namespace penstock::tiers {

/// How long things took, in buckets whose bounds grow by a quarter of an octave (19 %), from 1 µs to 67 s.
class LatencyHistogram {
 public:
  void record(TimePoint duration) noexcept { ++counts_[bucket(duration)]; }

  [[nodiscard]] std::uint64_t count() const noexcept;
  /// The upper bound of the bucket that holds the `fraction`-th of all, such as 0.99; zero when there is none.
  [[nodiscard]] TimePoint percentile(double fraction) const noexcept;

  LatencyHistogram& operator+=(const LatencyHistogram& other) noexcept;
  /// What was recorded since `earlier`, which is an earlier state of this one.
  LatencyHistogram& operator-=(const LatencyHistogram& earlier) noexcept;

 private:
  static constexpr int octaves = 26, steps = 4;
  [[nodiscard]] static std::size_t bucket(TimePoint duration) noexcept;

  std::array<std::uint64_t, octaves * steps> counts_{};
};

}  // namespace penstock::tiers
