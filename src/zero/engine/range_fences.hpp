#pragma once

#include "tiers/device/event_pool.hpp"

#include <cstdint>
#include <vector>

namespace penstock::zero {

/// For each released range of device memory the fences after which it may be written.
///
/// An event that is recorded again for each release would say too much: a wait that is enqueued late would be one for
/// later work too.
///
/// Used by the trainer's thread.
class RangeFences {
 public:
  /// The range [offset, offset + size) may be written after all of `fences`; null ones have passed.
  void release(std::uint64_t offset, ByteCount size, const std::vector<tiers::Fence>& fences);
  /// The range has a new user, which waits for these fences before it writes the range.
  [[nodiscard]] std::vector<tiers::Fence> take(std::uint64_t offset, ByteCount size);
  /// Of all ranges.
  [[nodiscard]] std::vector<tiers::Fence> all() const;
  /// Every range may be written now.
  void clear() { released_.clear(); }

 private:
  struct Released {
    std::uint64_t begin, end;
    tiers::Fence fence;
  };
  std::vector<Released> released_;  // those of different calls are disjoint
};

}  // namespace penstock::zero
