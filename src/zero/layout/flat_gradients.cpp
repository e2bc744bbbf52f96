// The full gradients of FlatResidency: their ranges, and the buckets in which they are reduced.

#include "zero/layout/flat_residency.hpp"
#include "zero/layout/padded.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <utility>

namespace penstock::zero {

using tiers::Purpose;
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

/// All ranges before any is used: there may be no room for one of them.
Result<FlatResidency::Ranges> FlatResidency::reserve_gradients(std::uint32_t unit, Effects& effects) {
  Ranges ranges;
  for (const std::uint32_t flat : shards_.trained_by(unit)) {
    if (is_open(flat)) continue;
    // The last micro-batch of this flat still uses its range until it is accumulated.
    while (reducing_.holds(flat)) PENSTOCK_TRY(finish_oldest_gradient(effects));
    Reservation range;
    if (!in_place_.first_gradients || places_[flat].accumulated) {
      PENSTOCK_TRY_ASSIGN(range, reserve(size(flat), Purpose::full_gradient, unit, effects));
    }
    ranges.emplace_back(flat, std::move(range));
  }
  return ranges;
}

Result<void> FlatResidency::open_gradients(std::uint32_t unit, Effects& effects) {
  if (!limits_.overlap) PENSTOCK_TRY(finish_reducing(effects));
  if (clearing_) PENSTOCK_TRY(drop_unleased(effects));
  auto ranges = reserve_gradients(unit, effects);
  if (!ranges && ranges.error().code() == ErrorCode::budget_too_small && has_one_budget()) {
    // As in gather_unit(): gathered flats may leave no gap that is long enough.
    PENSTOCK_TRY(drop_unleased(effects));
    ranges = reserve_gradients(unit, effects);
  }
  if (!ranges) return ranges.error();
  for (auto& [flat, range] : *ranges) {
    places_[flat].gradient = std::move(range);
    if (auto opened = effects.open_gradient(flat); !opened) {
      places_[flat].gradient = {};
      return opened;
    }
    places_[flat].pending_users = places_[flat].users;
  }
  return ok();
}

bool FlatResidency::close_gradient(std::uint32_t flat) {
  PENSTOCK_CHECK(is_open(flat));
  Place& place = places_[flat];
  if (--place.pending_users > 0) return false;
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

Result<void> FlatResidency::finish_oldest_gradient(Effects& effects) {
  if (!reducing_.is_reducing()) {
    reducing_.close_bucket();
    PENSTOCK_TRY(start_closed_buckets(effects));
  }
  const std::uint32_t flat = reducing_.oldest();
  PENSTOCK_TRY(effects.finish_gradient(flat));
  places_[flat].gradient = {};
  reducing_.remove_oldest();
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
  return ok();
}

}  // namespace penstock::zero
