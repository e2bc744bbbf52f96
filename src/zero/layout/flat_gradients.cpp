// The full gradients of FlatResidency: their ranges, and the buckets in which they are reduced.

#include "zero/layout/flat_residency.hpp"
#include "zero/layout/padded.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <utility>

namespace penstock::zero {

using tiers::Purpose;
using tiers::RangeAllocator;
using tiers::Reservation;

void FlatResidency::expect_no_gradients(std::span<const std::uint32_t> units) {
  for (std::uint32_t flat = 0; flat < places_.size(); ++flat)
    places_[flat].users = shards_.flats()[flat].frozen ? 0 : shards_.user_count(flat);
  for (const std::uint32_t unit : units) {
    for (const std::uint32_t flat : shards_.trained_by(unit)) --places_[flat].users;
  }
  flats_with_gradient_ = static_cast<std::uint32_t>(
      std::count_if(places_.begin(), places_.end(), [](const Place& place) { return place.users > 0; }));
  open_in_micro_batch_ = flats_with_gradient_;
}

ReductionQueue::Size FlatResidency::size_in_bucket(std::uint32_t flat) const {
  return {.elements = length(flat), .bytes = padded(length(flat), dtype_)};
}

/// The flats whose gradients the unit opens. Those that several units share are the first to get memory: they stay open
/// for long, and divide the memory unless they are at its end.
std::vector<std::uint32_t> FlatResidency::gradients_to_open(std::uint32_t unit) const {
  std::vector<std::uint32_t> flats;
  for (const bool shared : {true, false}) {
    for (const std::uint32_t flat : shards_.trained_by(unit)) {
      const std::uint32_t users = places_[flat].users;
      if (!is_open(flat) && users > 0 && (users > 1) == shared) flats.push_back(flat);
    }
  }
  return flats;
}

/// All ranges before any is used. Returns the length for which there is no room; 0: all have it. Ranges of a call that
/// fails stay reserved, so that repeating it gives the same ranges.
Result<ByteCount> FlatResidency::reserve_gradients(std::uint32_t unit, std::span<const std::uint32_t> flats,
                                                   Effects& effects) {
  for (const std::uint32_t flat : flats) {
    Place& place = places_[flat];
    // The last micro-batch of this flat still uses its range until it is accumulated.
    while (reducing_.holds(flat)) PENSTOCK_TRY(finish_oldest_gradient(effects));
    if (place.gradient.held() || (in_place_.first_gradients && !place.accumulated)) continue;
    while (place.users > 1 && !reducing_.empty()) PENSTOCK_TRY(finish_oldest_gradient(effects));
    PENSTOCK_TRY_ASSIGN(place.gradient, reserve(size(flat), Purpose::full_gradient, unit, effects));
    if (!place.gradient.held()) return size(flat);
  }
  return ByteCount();
}

/// Frees the ranges that calls have reserved and not opened.
void FlatResidency::free_unopened_gradients() {
  for (std::uint32_t flat = 0; flat < places_.size(); ++flat)
    if (!is_open(flat) && !reducing_.holds(flat)) places_[flat].gradient = {};
}

/// Whether the unit's flats, which are gathered, must be gathered again from free memory. In an order that is not
/// rehearsed they may be in the middle of the memory, and its gradients have no room, even if all else is dropped; once
/// the flats are leased they cannot be moved. False where that would not help, and while others are leased: plans have
/// room for one unit at a time.
bool FlatResidency::must_make_room_for_gradients(std::uint32_t unit) const {
  if (order_.is_expected() || limits_.whole || !has_one_budget() || leased_elements_ > ElementCount())
    return false;
  RangeAllocator now(budgets_.gradients.size().value(), extent_alignment.bytes());
  const auto occupy = [&now](const Reservation& range) {
    if (range.held()) PENSTOCK_CHECK(now.allocate_at({range.offset(), range.length().value()}));
  };
  for (const std::uint32_t flat : open_) occupy(places_[flat].gradient);
  RangeAllocator again = now;
  for (const std::uint32_t flat : shards_.needed_by(unit)) {
    occupy(places_[flat].gathered);
    if (!again.allocate(gathered_size(flat).value(), RangeAllocator::End::low)) return false;
  }
  const auto flats = gradients_to_open(unit);
  const auto has_room = [&](RangeAllocator& memory) {
    return std::all_of(flats.begin(), flats.end(), [&](std::uint32_t flat) {
      return memory.allocate(size(flat).value(), RangeAllocator::End::high).has_value();
    });
  };
  return !has_room(now) && has_room(again);
}

Result<void> FlatResidency::open_gradients(std::uint32_t unit, Effects& effects) {
  if (!limits_.overlap) PENSTOCK_TRY(finish_reducing(effects));
  if (clearing_) PENSTOCK_TRY(drop_unleased(effects));
  const auto flats = gradients_to_open(unit);
  PENSTOCK_TRY_ASSIGN(ByteCount lacking, reserve_gradients(unit, flats, effects));
  if (!lacking.is_zero()) {
    // As in gather_unit(): gathered flats may leave no gap that is long enough; nor may the unit's own first ranges,
    // which were reserved beside gradients that have been reduced meanwhile.
    if (has_one_budget()) PENSTOCK_TRY(drop_unleased(effects));
    free_unopened_gradients();
    PENSTOCK_TRY_ASSIGN(lacking, reserve_gradients(unit, flats, effects));
  }
  if (!lacking.is_zero()) {
    Error error = out_of_memory(budgets_.gradients, lacking);
    free_unopened_gradients();
    return error;
  }
  for (const std::uint32_t flat : flats) {
    PENSTOCK_TRY(effects.open_gradient(flat));
    places_[flat].pending_users = places_[flat].users;
    open_.insert(flat);
  }
  return ok();
}

bool FlatResidency::close_gradient(std::uint32_t flat) {
  PENSTOCK_CHECK(is_open(flat));
  Place& place = places_[flat];
  if (--place.pending_users > 0) return false;
  open_.erase(flat);
  reducing_.add(flat, size_in_bucket(flat));
  place.accumulated = true;
  if (--open_in_micro_batch_ == 0) {
    reducing_.close_bucket();
    open_in_micro_batch_ = flats_with_gradient_;
  }
  return true;
}

Result<void> FlatResidency::reduce_buckets(Effects& effects) {
  reducing_.expect(next_gradients());
  return start_closed_buckets(effects);
}

/// The gradients that are opened next, as far as that is predicted.
ReductionQueue::Size FlatResidency::next_gradients() const {
  ReductionQueue::Size all;
  const auto next = order_.next(0);
  if (!next) return all;
  for (const std::uint32_t flat : shards_.trained_by(*next)) {
    if (places_[flat].users > 0 && !is_open(flat)) all += size_in_bucket(flat);
  }
  return all;
}

Result<void> FlatResidency::start_closed_buckets(Effects& effects) {
  for (auto flats = reducing_.closed(); !flats.empty(); flats = reducing_.closed()) {
    PENSTOCK_TRY(effects.reduce(flats));
    reducing_.start();
  }
  return ok();
}

/// Without overlap, all that are being reduced: the repetition of a call that fails here would begin with them.
Result<void> FlatResidency::finish_oldest_gradient(Effects& effects) {
  if (!reducing_.is_reducing()) {
    reducing_.close_bucket();
    PENSTOCK_TRY(start_closed_buckets(effects));
  }
  do {
    const std::uint32_t flat = reducing_.oldest();
    PENSTOCK_TRY(effects.finish_gradient(flat));
    places_[flat].gradient = {};
    reducing_.remove_oldest();
  } while (!limits_.overlap && reducing_.is_reducing());
  return ok();
}

/// Finishes the gradients that are being reduced.
Result<void> FlatResidency::finish_reducing(Effects& effects) {
  PENSTOCK_TRY(start_closed_buckets(effects));
  while (reducing_.is_reducing()) PENSTOCK_TRY(finish_oldest_gradient(effects));
  return ok();
}

Result<void> FlatResidency::finish_gradients(Effects& effects) {
  while (!reducing_.empty()) PENSTOCK_TRY(finish_oldest_gradient(effects));
  free_unopened_gradients();
  return ok();
}

}  // namespace penstock::zero
