#include <penstock/base/check.hpp>
#include <penstock/base/units.hpp>
#include <penstock/tiers/range_allocator.hpp>

#include <algorithm>

namespace penstock::tiers {

RangeAllocator::RangeAllocator(std::uint64_t size, std::uint64_t granule)
    : size_(size), granule_(granule), free_total_(size) {
  PENSTOCK_CHECK(granule > 0 && size % granule == 0);
  if (size > 0) gaps_.emplace(0, size);
}

std::optional<RangeAllocator::Range> RangeAllocator::allocate(std::uint64_t length, End end) {
  PENSTOCK_CHECK(length > 0);
  if (length > size_) return std::nullopt;
  const std::uint64_t rounded = round_up(length, granule_);
  auto best = gaps_.end();
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    if (gap->second < rounded) continue;
    const bool better = best == gaps_.end() || gap->second < best->second ||
                        (gap->second == best->second && end == End::high);
    if (better) best = gap;
  }
  if (best == gaps_.end()) return std::nullopt;

  const auto [begin, available] = *best;
  gaps_.erase(best);
  free_total_ -= rounded;
  if (end == End::low) {
    if (available > rounded) gaps_.emplace(begin + rounded, available - rounded);
    return Range{begin, rounded};
  }
  if (available > rounded) gaps_.emplace(begin, available - rounded);
  return Range{begin + available - rounded, rounded};
}

void RangeAllocator::release(Range range) {
  PENSTOCK_CHECK(range.length > 0 && range.begin + range.length <= size_);
  auto [gap, inserted] = gaps_.emplace(range.begin, range.length);
  PENSTOCK_CHECK(inserted);
  free_total_ += range.length;
  if (const auto next = std::next(gap); next != gaps_.end()) {
    PENSTOCK_CHECK(range.begin + range.length <= next->first);
    if (range.begin + range.length == next->first) {
      gap->second += next->second;
      gaps_.erase(next);
    }
  }
  if (gap != gaps_.begin()) {
    const auto previous = std::prev(gap);
    PENSTOCK_CHECK(previous->first + previous->second <= range.begin);
    if (previous->first + previous->second == range.begin) {
      previous->second += gap->second;
      gaps_.erase(gap);
    }
  }
}

std::uint64_t RangeAllocator::largest_gap() const {
  std::uint64_t largest = 0;
  for (const auto& [begin, length] : gaps_) largest = std::max(largest, length);
  return largest;
}

}  // namespace penstock::tiers
