#include "tiers/store/range_allocator.hpp"
#include <penstock/base/check.hpp>
#include <penstock/base/units.hpp>

#include <algorithm>

namespace penstock::tiers {

RangeAllocator::RangeAllocator(std::uint64_t size, std::uint64_t granule)
    : size_(size), granule_(granule), free_total_(size) {
  PENSTOCK_CHECK(granule > 0 && size % granule == 0);
  if (size > 0) gaps_.push_back({0, size});
}

std::optional<RangeAllocator::Range> RangeAllocator::allocate(std::uint64_t length, End end) {
  PENSTOCK_CHECK(length > 0);
  if (length > size_) return std::nullopt;
  const std::uint64_t rounded = round_up(length, granule_);
  auto best = gaps_.end();
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    if (gap->length < rounded) continue;
    const bool better = best == gaps_.end() || gap->length < best->length ||
                        (gap->length == best->length && end == End::high);
    if (better) best = gap;
  }
  if (best == gaps_.end()) return std::nullopt;

  free_total_ -= rounded;
  best->length -= rounded;
  const std::uint64_t begin = end == End::low ? best->begin : best->begin + best->length;
  if (end == End::low) best->begin += rounded;
  if (best->length == 0) gaps_.erase(best);
  return Range{begin, rounded};
}

std::optional<RangeAllocator::Range> RangeAllocator::allocate_within(std::uint64_t length,
                                                                     std::uint64_t begin, std::uint64_t end) {
  PENSTOCK_CHECK(length > 0);
  if (length > size_) return std::nullopt;
  const std::uint64_t rounded = round_up(length, granule_);
  std::optional<Range> best;
  for (const Range& gap : gaps_) {
    const std::uint64_t from = std::max(gap.begin, begin), to = std::min(gap.begin + gap.length, end);
    if (to >= from + rounded && (!best || to - from < best->length)) best = Range{from, to - from};
  }
  if (!best) return std::nullopt;
  best->length = rounded;
  PENSTOCK_CHECK(allocate_at(*best));
  return best;
}

bool RangeAllocator::allocate_at(Range range) {
  if (range.length == 0 || range.begin % granule_ != 0 || range.length % granule_ != 0) return false;
  if (range.begin > size_ || range.length > size_ - range.begin) return false;
  const std::uint64_t end = range.begin + range.length;
  auto gap = std::upper_bound(gaps_.begin(), gaps_.end(), range.begin,
                              [](std::uint64_t begin, const Range& one) { return begin < one.begin; });
  if (gap == gaps_.begin()) return false;
  --gap;
  const std::uint64_t gap_end = gap->begin + gap->length;
  if (end > gap_end) return false;
  free_total_ -= range.length;
  if (end < gap_end) gap = std::prev(gaps_.insert(std::next(gap), {end, gap_end - end}));
  gap->length = range.begin - gap->begin;
  if (gap->length == 0) gaps_.erase(gap);
  return true;
}

std::vector<RangeAllocator::Range> RangeAllocator::allocate_all_from(std::uint64_t begin) {
  std::vector<Range> allocated;
  for (const Range& gap : gaps_) {
    const std::uint64_t first = std::max(gap.begin, begin), end = gap.begin + gap.length;
    if (first < end) allocated.push_back({first, end - first});
  }
  for (const Range& range : allocated) PENSTOCK_CHECK(allocate_at(range));
  return allocated;
}

void RangeAllocator::release(Range range) {
  PENSTOCK_CHECK(range.length > 0 && range.begin + range.length <= size_);
  const auto end_of = [](const Range& gap) { return gap.begin + gap.length; };
  const auto next = std::lower_bound(gaps_.begin(), gaps_.end(), range,
                                     [](const Range& a, const Range& b) { return a.begin < b.begin; });
  PENSTOCK_CHECK(next == gaps_.end() || end_of(range) <= next->begin);
  PENSTOCK_CHECK(next == gaps_.begin() || end_of(*std::prev(next)) <= range.begin);
  free_total_ += range.length;
  const bool joins_next = next != gaps_.end() && end_of(range) == next->begin;
  const bool joins_previous = next != gaps_.begin() && end_of(*std::prev(next)) == range.begin;
  if (joins_previous) {
    std::prev(next)->length += range.length + (joins_next ? next->length : 0);
    if (joins_next) gaps_.erase(next);
  } else if (joins_next) {
    *next = {range.begin, range.length + next->length};
  } else {
    gaps_.insert(next, range);
  }
}

std::pair<std::uint64_t, std::uint64_t> RangeAllocator::free_beside(Range range) const {
  const auto next = std::lower_bound(gaps_.begin(), gaps_.end(), range.begin,
                                     [](const Range& gap, std::uint64_t begin) { return gap.begin < begin; });
  std::uint64_t before = 0, after = 0;
  if (next != gaps_.begin()) {
    const Range& previous = *std::prev(next);
    if (previous.begin + previous.length == range.begin) before = previous.length;
  }
  if (next != gaps_.end() && next->begin == range.begin + range.length) after = next->length;
  return {before, after};
}

std::uint64_t RangeAllocator::largest_gap() const {
  std::uint64_t largest = 0;
  for (const Range& gap : gaps_) largest = std::max(largest, gap.length);
  return largest;
}

}  // namespace penstock::tiers
