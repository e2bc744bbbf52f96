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
    for (const auto& [purpose, size] : taken_) ledger_.give_back(tiers::Tier::device, purpose, size);
  }

  /// The next range. Precondition: the plan has counted it.
  [[nodiscard]] DeviceSpan take(ByteCount size, tiers::Purpose purpose) {
    const DeviceSpan range = rest_.subspan({}, size);
    rest_ = rest_.subspan(size, rest_.size() - size);
    ledger_.hold(tiers::Tier::device, purpose, size);
    taken_.emplace_back(purpose, size);
    return range;
  }

 private:
  DeviceSpan rest_;
  tiers::Ledger& ledger_;
  std::vector<std::pair<tiers::Purpose, ByteCount>> taken_;
};

}  // namespace penstock::zero
