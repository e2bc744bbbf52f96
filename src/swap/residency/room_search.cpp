#include "swap/residency/room_search.hpp"

#include <algorithm>
#include <iterator>

namespace penstock::swap {

void RoomSearch::begin(ByteCount wanted) {
  wanted_ = wanted;
  free_ = budget_.free();
  gaps_.clear();
  added_.clear();
  has_room_ = false;
}

bool RoomSearch::add(tiers::TensorId tensor, const tiers::Reservation& range) {
  added_.push_back(tensor);
  free_ += range.length();
  has_room_ = (budget_.has_places() ? join(range) : free_) >= wanted_;
  return has_room_;
}

ByteCount RoomSearch::join(const tiers::Reservation& range) {
  const auto [before, after] = budget_.free_beside(range);
  Gap gap{range.offset() - before.value(), range.offset() + (range.length() + after).value()};
  // Gaps of its neighbours overlap the free range between them, or touch.
  auto next = std::upper_bound(gaps_.begin(), gaps_.end(), range.offset(),
                               [](std::uint64_t offset, const Gap& one) { return offset < one.begin; });
  if (next != gaps_.end() && next->begin <= gap.end) {
    gap.end = next->end;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin() && std::prev(next)->end >= gap.begin) {
    --next;
    gap.begin = next->begin;
    *next = gap;
  } else {
    gaps_.insert(next, gap);
  }
  const std::uint64_t end = std::min(gap.end, budget_.end().value());
  return ByteCount(end - std::min(gap.begin, end));
}

}  // namespace penstock::swap
