#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/tiers/store/ledger.hpp>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace penstock::zero {

/// A part of an engine's device memory that is one allocation, so that it can be given back alone. Ranges of it that
/// the engine keeps are counted in the ledger.
///
/// The destructor ends the counts, and does not release the memory: a device that hangs may use it for ever.
/// Used by the trainer's thread.
class DeviceRegion {
 public:
  /// Device and ledger outlive it.
  DeviceRegion(tiers::Device& device, tiers::Ledger& ledger) : device_(device), ledger_(ledger) {}
  DeviceRegion(const DeviceRegion&) = delete;
  DeviceRegion& operator=(const DeviceRegion&) = delete;
  ~DeviceRegion() { end_counts(); }

  /// Errors: those of Device::allocate().
  Result<void> allocate(ByteCount size) {
    if (size.is_zero()) return ok();
    PENSTOCK_TRY_ASSIGN(memory_, device_.allocate(size));
    rest_ = memory_;
    return ok();
  }
  /// Uses memory of another owner instead.
  void adopt(std::shared_ptr<const DeviceSpan> memory) {
    borrowed_ = std::move(memory);
    rest_ = memory_ = *borrowed_;
  }
  /// Empty while it is released.
  [[nodiscard]] DeviceSpan memory() const { return is_released_ ? DeviceSpan() : memory_; }
  [[nodiscard]] ByteCount size() const { return memory_.size(); }
  [[nodiscard]] const std::shared_ptr<const DeviceSpan>& borrowed() const { return borrowed_; }

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

  /// Gives the memory back to the device, or to its owner. Precondition: no operation uses it.
  void release() noexcept {
    if (!is_released_ && !borrowed_ && !memory_.empty()) device_.release(memory_);
    borrowed_.reset();
    is_released_ = true;
    end_counts();
  }
  /// Memory for what release() has given back. Changes nothing. Errors: those of Device::allocate().
  [[nodiscard]] Result<DeviceSpan> allocate_replacement() const {
    return size().is_zero() ? DeviceSpan() : device_.allocate(size());
  }
  /// Whether it has contained `range`, of take().
  [[nodiscard]] bool contains(DeviceSpan range) const {
    const auto first = static_cast<std::uint64_t>(memory_.address());
    const auto at = static_cast<std::uint64_t>(range.address());
    return !range.empty() && first <= at && at < first + size().value();
  }
  /// Where a range of take() is in memory of allocate_replacement().
  [[nodiscard]] DeviceSpan translate(DeviceSpan range, DeviceSpan replacement) const {
    const std::uint64_t begin =
        static_cast<std::uint64_t>(range.address()) - static_cast<std::uint64_t>(memory_.address());
    return replacement.subspan(ByteCount(begin), range.size());
  }
  /// Owns `replacement` from now on; the ranges are in it.
  void replace_memory(DeviceSpan replacement) {
    memory_ = replacement;
    is_released_ = false;
    for (const auto& [purpose, size] : counted_) ledger_.hold(tiers::Tier::device, purpose, size);
    are_counted_ = true;
  }

 private:
  void end_counts() noexcept {
    if (!std::exchange(are_counted_, false)) return;
    for (const auto& [purpose, size] : counted_) ledger_.give_back(tiers::Tier::device, purpose, size);
  }

  tiers::Device& device_;
  tiers::Ledger& ledger_;
  DeviceSpan memory_, rest_;
  std::shared_ptr<const DeviceSpan> borrowed_;
  std::vector<std::pair<tiers::Purpose, ByteCount>> counted_;
  bool are_counted_ = true, is_released_ = false;
};

}  // namespace penstock::zero
