#pragma once

#include "tiers/device/event_pool.hpp"

#include <cstdint>
#include <vector>

namespace penstock::zero {

/// For each released range of device memory the fence after which it may be written.
///
/// An event that is recorded again for each release would say too much: a wait that is enqueued late would be one for
/// later work too.
///
/// Used by the trainer's thread.
class RangeFences {
 public:
  /// The range [offset, offset + size) may be written after `fence`. A null fence: now.
  void release(std::uint64_t offset, ByteCount size, tiers::Fence fence);
  /// The range has a new user, who waits for these fences before he writes it.
  [[nodiscard]] std::vector<tiers::Fence> take(std::uint64_t offset, ByteCount size);
  /// Every range may be written now.
  void clear() { released_.clear(); }

 private:
  struct Released {
    std::uint64_t begin, end;
    tiers::Fence fence;
  };
  std::vector<Released> released_;  // disjoint
};

}  // namespace penstock::zero
