#include <penstock/tiers/io/file_counters.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace penstock::tiers {

std::size_t LatencyHistogram::bucket(TimePoint duration) noexcept {
  const double microseconds = std::max(1.0, static_cast<double>(duration.count()) * 1e-3);
  const auto index = static_cast<std::size_t>(std::log2(microseconds) * steps);
  return std::min<std::size_t>(index, octaves * steps - 1);
}

std::uint64_t LatencyHistogram::count() const noexcept {
  return std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0});
}

TimePoint LatencyHistogram::percentile(double fraction) const noexcept {
  const std::uint64_t total = count();
  if (total == 0) return TimePoint::zero();
  const double within = fraction > 0 ? std::min(fraction, 1.0) : 0;  // 0 for NaN
  const auto wanted =
      std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(within * static_cast<double>(total))));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen >= wanted) return TimePoint(std::llround(1e3 * std::exp2(static_cast<double>(i + 1) / steps)));
  }
  return TimePoint::zero();
}

LatencyHistogram& LatencyHistogram::operator+=(const LatencyHistogram& other) noexcept {
  for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  return *this;
}

LatencyHistogram& LatencyHistogram::operator-=(const LatencyHistogram& earlier) noexcept {
  for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] -= earlier.counts_[i];
  return *this;
}

FileCounters& FileCounters::operator+=(const FileCounters& other) noexcept {
  bytes_read += other.bytes_read;
  bytes_written += other.bytes_written;
  requests += other.requests;
  retries += other.retries;
  short_transfers += other.short_transfers;
  subdivided += other.subdivided;
  latency += other.latency;
  return *this;
}

FileCounters& FileCounters::operator-=(const FileCounters& earlier) noexcept {
  bytes_read -= earlier.bytes_read;
  bytes_written -= earlier.bytes_written;
  requests -= earlier.requests;
  retries -= earlier.retries;
  short_transfers -= earlier.short_transfers;
  subdivided -= earlier.subdivided;
  latency -= earlier.latency;
  return *this;
}

}  // namespace penstock::tiers
