#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::tiers {

/// Which parts of [0, size) belong to whom: addresses of an arena, bytes of a swap file.
///
/// Best fit with immediate coalescing; every range is a multiple of the granule. Deterministic: equal calls
/// give equal ranges. Owned by one thread.
class RangeAllocator {
 public:
  /// Long-lived ranges grow from the low end and short-lived ones from the high end, so that the latter do
  /// not cut the space between the former into pieces.
  enum class End : std::uint8_t { low, high };

  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t length = 0;  ///< rounded up to the granule
  };

  /// `size` and `granule` are positive and `size` a multiple of `granule`.
  RangeAllocator(std::uint64_t size, std::uint64_t granule);

  /// At least `length` (> 0) consecutive units, or nothing where no gap is long enough.
  [[nodiscard]] std::optional<Range> allocate(std::uint64_t length, End end = End::low);
  /// `range` came from allocate() and is given back once.
  void release(Range range);

  [[nodiscard]] std::uint64_t free_total() const { return free_total_; }
  [[nodiscard]] std::uint64_t largest_gap() const;
  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  std::uint64_t size_, granule_, free_total_;
  std::vector<Range> gaps_;  // by begin, no two of them adjacent
};

}  // namespace penstock::tiers
