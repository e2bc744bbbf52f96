#pragma once

#include "swap/policy/next_uses.hpp"

#include <penstock/base/units.hpp>

#include <cstdint>
#include <vector>

namespace penstock::swap {

/// DeepSpeed's rule for what stays in memory after its use: what is used again in the same round, once less than `most`
/// bytes of other uses have come before, each counted as often as it comes (`__params_to_release` of
/// deepspeed/runtime/zero/partitioned_param_coordinator.py, where it is elements of parameters).
///
/// Example: A (3 bytes), B (2), C (2), A. With `most` = 4, A is dropped after its first use, with 5 it stays.
///
/// Pure; owned by one thread.
class ReuseDistance {
 public:
  explicit ReuseDistance(ByteCount most) : most_(most) {}

  /// Called when the order of use has another revision. Size: ByteCount(TensorId).
  template <class Size>
  void rebuild(const NextUses& uses, const Size& size) {
    bytes_before_.assign(1, ByteCount());
    for (std::uint64_t place = 0; place < uses.length(); ++place) {
      const auto tensor = uses.in_round(place);
      bytes_before_.push_back(bytes_before_.back() + (tensor ? size(*tensor) : ByteCount()));
    }
  }
  /// Whether `tensor`, whose use has ended, stays in memory.
  [[nodiscard]] bool keeps(const NextUses& uses, tiers::TensorId tensor) const {
    const std::uint64_t now = uses.position() - uses.round_begin(), next = uses.next_use(tensor);
    if (next == NextUses::never || next >= uses.round_begin() + uses.length()) return false;
    return bytes_before_[next - uses.round_begin()] - bytes_before_[now] < most_;
  }

 private:
  ByteCount most_;
  std::vector<ByteCount> bytes_before_;  // by place in the round
};

}  // namespace penstock::swap
