#pragma once

#include "tiers/store/memory_budget.hpp"

#include <penstock/tiers/store/tensor.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace penstock::swap {

/// Finds the copies that must leave so that a range of memory is free, before any of them leaves: of candidates in the
/// order of eviction, the first ones that together open a gap that is long enough.
///
///     search.begin(8_MiB);
///     order.walk(position, [&](TensorId tensor) { return !search.add(tensor, range_of(tensor)); });
///     for (TensorId tensor : search.found()) evict(tensor);
///
/// Copies before the last one that are not in the gap leave too: their room joins others' later. To keep them moves
/// fewer bytes in most orders of use, but in some a copy that stays in an awkward place costs several times as many.
///
/// add() takes a time that grows with the gaps that the candidates before it leave. Used by one thread, for one search
/// after the other, so that it does not allocate each time.
class RoomSearch {
 public:
  /// `budget` outlives it.
  explicit RoomSearch(const tiers::MemoryBudget& budget) : budget_(budget) {}
  /// Precondition: the budget has no gap of `wanted` bytes. It must not change before the last add().
  void begin(ByteCount wanted);
  /// Adds the next candidate. True once there is room; then the search has ended.
  bool add(tiers::TensorId tensor, const tiers::Reservation& range);
  /// Empty if all candidates do not make enough room. Until the next begin().
  [[nodiscard]] std::span<const tiers::TensorId> found() const {
    return has_room_ ? std::span(added_) : std::span<const tiers::TensorId>();
  }

 private:
  struct Gap {
    std::uint64_t begin = 0, end = 0;
  };
  /// The length of the gap that is there without the range and those that were added.
  ByteCount join(const tiers::Reservation& range);

  const tiers::MemoryBudget& budget_;
  ByteCount wanted_;
  ByteCount free_;         // without those that were added
  std::vector<Gap> gaps_;  // that they leave, with what is free beside them; ascending, apart from each other
  std::vector<tiers::TensorId> added_;
  bool has_room_ = false;
};

}  // namespace penstock::swap
