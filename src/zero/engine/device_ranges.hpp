#pragma once

#include <penstock/base/span.hpp>
#include <penstock/tiers/store/ledger.hpp>

#include <utility>
#include <vector>

namespace penstock::zero {

/// Divides a part of an engine's device memory into ranges that it keeps until it is destroyed, and counts them in the
/// ledger.
class DeviceRanges {
 public:
  /// The ledger outlives it.
  DeviceRanges(DeviceSpan memory, tiers::Ledger& ledger) : rest_(memory), ledger_(ledger) {}
  DeviceRanges(const DeviceRanges&) = delete;
  DeviceRanges& operator=(const DeviceRanges&) = delete;
  ~DeviceRanges() {
    for (const auto& [purpose, size] : counted_) ledger_.give_back(tiers::Tier::device, purpose, size);
  }

  /// The next range. Precondition: the plan has counted it.
  [[nodiscard]] DeviceSpan take(ByteCount size, tiers::Purpose purpose) {
    const DeviceSpan range = rest_.subspan({}, size);
    rest_ = rest_.subspan(size, rest_.size() - size);
    count(size, purpose);
    return range;
  }
  /// Counts device memory that the engine uses and another object has allocated.
  void count(ByteCount size, tiers::Purpose purpose) {
    ledger_.hold(tiers::Tier::device, purpose, size);
    counted_.emplace_back(purpose, size);
  }

 private:
  DeviceSpan rest_;
  tiers::Ledger& ledger_;
  std::vector<std::pair<tiers::Purpose, ByteCount>> counted_;
};

}  // namespace penstock::zero
