#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::tiers {

/// Allocates ranges of [0, size), such as addresses of an arena or bytes of a swap file.
///
/// Best fit with immediate coalescing; lengths are multiples of the granule. Deterministic: equal sequences of calls
/// return equal ranges. Used by one thread.
class RangeAllocator {
 public:
  /// Long-lived ranges are allocated from the low end and short-lived ones from the high end, which reduces
  /// fragmentation.
  enum class End : std::uint8_t { low, high };

  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t length = 0;  ///< rounded up to the granule
  };

  /// `size` and `granule` are positive and `size` a multiple of `granule`.
  RangeAllocator(std::uint64_t size, std::uint64_t granule);

  /// A range of at least `length` (> 0); nothing if no gap is long enough.
  [[nodiscard]] std::optional<Range> allocate(std::uint64_t length, End end = End::low);
  /// The same within [begin, end), at the low end of a gap. Both are multiples of the granule.
  [[nodiscard]] std::optional<Range> allocate_within(std::uint64_t length, std::uint64_t begin,
                                                     std::uint64_t end);
  /// Allocates `range`, whose bounds are multiples of the granule. False if it is not free as a whole, or misaligned.
  [[nodiscard]] bool allocate_at(Range range);
  /// Allocates all that is free from `begin`, a multiple of the granule, on.
  [[nodiscard]] std::vector<Range> allocate_all_from(std::uint64_t begin);
  /// Frees a range that was allocated.
  void release(Range range);

  /// The lengths of the gaps directly before and after an allocated range.
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> free_beside(Range range) const;

  [[nodiscard]] std::uint64_t free_total() const { return free_total_; }
  [[nodiscard]] std::uint64_t largest_gap() const;
  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  std::uint64_t size_, granule_, free_total_;
  std::vector<Range> gaps_;  // ascending, not adjacent
};

}  // namespace penstock::tiers
