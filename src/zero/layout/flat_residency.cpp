#include "zero/layout/flat_residency.hpp"

#include "zero/layout/padded.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <optional>
#include <utility>

namespace penstock::zero {

using tiers::Purpose;
using tiers::RangeAllocator;
using tiers::Reservation;

FlatResidency::FlatResidency(const ShardLayout& shards, DType dtype, InPlace in_place,
                             const ResidencyLimits& limits, Budgets budgets, std::vector<std::uint32_t> units)
    : shards_(shards),
      dtype_(dtype),
      in_place_(in_place),
      limits_(limits),
      budgets_(budgets),
      gradient_share_(gradient_share(shards, dtype, limits, budgets.gradients.size(), has_one_budget())),
      persistent_(persistent_flats(shards, limits)),
      places_(shards.flats().size()),
      reducing_(gradient_share_.bucket_max),
      order_(shards, std::move(units)) {
  expect_no_gradients({});
}

bool FlatResidency::needs(std::uint32_t unit, std::uint32_t flat) const {
  const auto needed = shards_.needed_by(unit);
  return std::find(needed.begin(), needed.end(), flat) != needed.end();
}

ByteCount FlatResidency::size(std::uint32_t flat) const {
  return size_of(dtype_) * shards_.flats()[flat].length.value();
}

ByteCount FlatResidency::gathered_size(std::uint32_t flat) const {
  return size(flat) + in_place_.lease_gap;
}

Result<void> FlatResidency::acquire(std::uint32_t unit, Effects& effects) {
  OrderOfUse::Noted use = order_.note(unit);
  auto gathered = gather_unit(unit, effects);
  if (!gathered) order_.undo(std::move(use));
  return gathered;
}

Result<void> FlatResidency::gather_unit(std::uint32_t unit, Effects& effects) {
  if (!limits_.overlap) PENSTOCK_TRY(finish_reducing(effects));
  if (!clearing_) {
    PENSTOCK_TRY(drop_beyond_reuse(unit, effects));
    PENSTOCK_TRY(drop_above_limit(unit, effects));
    PENSTOCK_TRY_ASSIGN(const ByteCount lacking, gather_needed(unit, effects));
    if (lacking.is_zero() && !must_make_room_for_gradients(unit)) return gather_ahead(unit, effects);
  }
  // Gathered flats, even of this unit, may be where they leave no gap that is long enough: begin with free memory.
  PENSTOCK_TRY(drop_unleased(effects));
  PENSTOCK_TRY_ASSIGN(const ByteCount lacking, gather_needed(unit, effects));
  if (!lacking.is_zero()) return out_of_memory(budgets_.gathered, lacking);
  return gather_ahead(unit, effects);
}

/// Returns the length for which there is no room; 0: all have it.
Result<ByteCount> FlatResidency::gather_needed(std::uint32_t unit, Effects& effects) {
  for (const std::uint32_t flat : shards_.needed_by(unit)) {
    if (is_gathered(flat)) continue;
    Reservation range = std::move(places_[flat].gathered);
    if (!range.held()) {
      PENSTOCK_TRY_ASSIGN(range, reserve(gathered_size(flat), Purpose::gathered_flat, unit, effects));
      if (!range.held()) return gathered_size(flat);
    }
    PENSTOCK_TRY(take_and_gather(flat, std::move(range), effects));
  }
  return ByteCount();
}

Result<void> FlatResidency::gather_ahead(std::uint32_t unit, Effects& effects) {
  // More units than a device needs to have ahead, and few enough to look at in each call.
  constexpr std::size_t units_max = 256;
  if (gathered_.size() == places_.size()) return ok();
  for (std::size_t distance = 0; distance < units_max; ++distance) {
    const auto next = order_.next(distance);
    if (!next) return ok();
    for (const std::uint32_t flat : shards_.needed_by(*next)) {
      if (elements_ahead(unit) >= limits_.prefetch) return ok();
      if (is_gathered(flat)) continue;
      PENSTOCK_TRY_ASSIGN(auto range, reserve_ahead(flat, unit, distance, effects));
      if (!range.held()) return ok();
      PENSTOCK_TRY(take_and_gather(flat, std::move(range), effects));
      places_[flat].ahead = true;
      ahead_elements_ += length(flat);
    }
  }
  return ok();
}

Result<Reservation> FlatResidency::reserve_ahead(std::uint32_t flat, std::uint32_t unit, std::size_t distance,
                                                 Effects& effects) {
  if (places_[flat].gathered.held()) return std::move(places_[flat].gathered);
  while (true) {
    if (may_hold_ahead(flat, unit, distance)) {
      auto range = budgets_.gathered.reserve(gathered_size(flat), Purpose::gathered_flat);
      if (range) return std::move(*range);
    }
    PENSTOCK_TRY_ASSIGN(auto dropped, drop_furthest(unit, distance + 1, /*persistent=*/false, effects));
    if (!dropped) return Reservation();
  }
}

/// Whether the limits allow another flat. Full gradients take their memory from flats: beyond the next unit, none is
/// gathered that they would drop.
bool FlatResidency::may_hold_ahead(std::uint32_t flat, std::uint32_t unit, std::size_t distance) const {
  if (spare_elements(unit) + length(flat) > limits_.live_parameters) return false;
  if (distance == 0 || !has_one_budget()) return true;
  return gathered_bytes_ + padded(length(flat), dtype_) + gradient_share_.held <= budgets_.gathered.size();
}

ElementCount FlatResidency::elements_ahead(std::uint32_t unit) const {
  ElementCount ahead = ahead_elements_;
  for (const std::uint32_t flat : shards_.needed_by(unit)) {
    if (places_[flat].ahead) ahead -= length(flat);
  }
  return ahead;
}

ElementCount FlatResidency::spare_elements(std::uint32_t unit) const {
  ElementCount spare = gathered_elements_ - leased_elements_;
  for (const std::uint32_t flat : shards_.needed_by(unit)) {
    if (is_gathered(flat) && places_[flat].leases == 0) spare -= length(flat);
  }
  return spare;
}

Result<void> FlatResidency::drop_above_limit(std::uint32_t unit, Effects& effects) {
  while (spare_elements(unit) > limits_.live_parameters) {
    PENSTOCK_TRY_ASSIGN(const bool dropped, drop_furthest(unit, 0, /*persistent=*/false, effects));
    if (!dropped) return ok();
  }
  return ok();
}

Result<void> FlatResidency::drop_beyond_reuse(std::uint32_t unit, Effects& effects) {
  if (!limits_.reuse_distance) return ok();
  const std::vector<bool> needed = order_.needed_within(*limits_.reuse_distance, unit);
  for (auto flat = gathered_.begin(); flat != gathered_.end();) {
    const std::uint32_t next = *flat++;
    const Place& place = places_[next];
    if (needed[next] || persistent_[next] || place.leases > 0 || place.ahead) continue;
    PENSTOCK_TRY(drop(next, effects));
  }
  return ok();
}

Result<void> FlatResidency::take_and_gather(std::uint32_t flat, Reservation range, Effects& effects) {
  places_[flat].gathered = std::move(range);
  auto started = effects.gather(flat);
  if (started) {
    gathered_.insert(flat);
    gathered_elements_ += length(flat);
    gathered_bytes_ += padded(length(flat), dtype_);
  } else {
    places_[flat].gathered = {};
  }
  return started;
}

void FlatResidency::lease(std::uint32_t unit) {
  for (const std::uint32_t flat : shards_.needed_by(unit)) {
    if (places_[flat].leases++ == 0) leased_elements_ += length(flat);
    no_longer_ahead(flat);
  }
  order_.end_use();
}

void FlatResidency::release(std::uint32_t unit) {
  for (const std::uint32_t flat : shards_.needed_by(unit)) {
    PENSTOCK_CHECK(places_[flat].leases > 0);
    if (--places_[flat].leases == 0) leased_elements_ -= length(flat);
  }
}

void FlatResidency::no_longer_ahead(std::uint32_t flat) {
  if (std::exchange(places_[flat].ahead, false)) ahead_elements_ -= length(flat);
}

/// For what must be had now; not held if there is no room. Gradients grow from the other end, so that they do not cut
/// the room of flats.
Result<Reservation> FlatResidency::reserve(ByteCount size, Purpose purpose, std::uint32_t for_unit,
                                           Effects& effects) {
  const bool for_flat = purpose == Purpose::gathered_flat;
  tiers::MemoryBudget& budget = for_flat ? budgets_.gathered : budgets_.gradients;
  const bool dropping_helps = for_flat || has_one_budget(), finishing_helps = !for_flat || has_one_budget();
  const auto end = for_flat ? RangeAllocator::End::low : RangeAllocator::End::high;
  while (true) {
    auto range = budget.reserve(size, purpose, end);
    if (range) return std::move(*range);
    // A reduction that is not the youngest has most likely completed; a flat that is dropped must be gathered again.
    if (finishing_helps && reducing_.has_younger()) {
      PENSTOCK_TRY(finish_oldest_gradient(effects));
      continue;
    }
    if (dropping_helps) {
      PENSTOCK_TRY_ASSIGN(auto dropped, drop_furthest(for_unit, 1, /*persistent=*/false, effects));
      if (dropped) continue;
    }
    if (finishing_helps && !reducing_.empty()) {
      PENSTOCK_TRY(finish_oldest_gradient(effects));
      continue;
    }
    if (!dropping_helps) return Reservation();
    PENSTOCK_TRY_ASSIGN(auto dropped, drop_furthest(for_unit, 1, /*persistent=*/true, effects));
    if (!dropped) return Reservation();
  }
}

Error FlatResidency::out_of_memory(const tiers::MemoryBudget& budget, ByteCount size) const {
  Error error = budget.too_small(size).advice(
      "end a UnitLease, or pass open gradients to reduce(), then repeat the call; or raise "
      "penstock.device_budget");
  if (in_place_.parameters && &budget == &budgets_.gathered) {
    error =
        std::move(error)
            .reason("the shards of leased units may take " + to_string(budget.size()) + " of the host budget")
            .advice(
                "end a UnitLease, then repeat the call; or raise penstock.device_budget, which counts leased "
                "shards too, and penstock.host_budget if it is set");
  }
  for (std::uint32_t flat = 0; flat < places_.size(); ++flat) {
    const std::string& name = shards_.flats()[flat].name;
    if (places_[flat].leases > 0) error = std::move(error).note("leased  " + name);
    if (is_open(flat)) error = std::move(error).note("open    gradient of " + name);
  }
  return error;
}

/// Of the gathered flats that are not leased, that `for_unit` does not need, and that are not needed in the next
/// `distance_min` uses, drops the one that is needed last: of those that persist, or of the others. False when there is
/// none.
Result<bool> FlatResidency::drop_furthest(std::uint32_t for_unit, std::uint64_t distance_min, bool persistent,
                                          Effects& effects) {
  std::optional<std::uint32_t> furthest;
  std::uint64_t distance = 0;
  for (const std::uint32_t flat : gathered_) {
    if (persistent_[flat] != persistent || places_[flat].leases > 0 || needs(for_unit, flat)) continue;
    const std::uint64_t until = order_.uses_until_needed(flat);
    if (until < distance_min) continue;
    if (!furthest || until > distance) furthest = flat, distance = until;
  }
  if (!furthest) return false;
  PENSTOCK_TRY(drop(*furthest, effects));
  return true;
}

/// Drops every flat that is not leased. If a call fails, the next acquire(), open_gradients() or begin_step() continues
/// it, so that all ranks drop the same flats.
Result<void> FlatResidency::drop_unleased(Effects& effects) {
  clearing_ = true;
  PENSTOCK_TRY(finish_gradients(effects));
  for (auto flat = gathered_.begin(); flat != gathered_.end();) {
    const std::uint32_t next = *flat++;
    if (places_[next].leases == 0) PENSTOCK_TRY(drop(next, effects));
  }
  for (std::uint32_t flat = 0; flat < places_.size(); ++flat) {
    if (!is_gathered(flat)) places_[flat].gathered = {};
  }
  clearing_ = false;
  return ok();
}

Result<void> FlatResidency::drop(std::uint32_t flat, Effects& effects, bool keeps_range) {
  PENSTOCK_TRY(effects.drop(flat));
  gathered_.erase(flat);
  gathered_elements_ -= length(flat);
  gathered_bytes_ -= padded(length(flat), dtype_);
  no_longer_ahead(flat);
  if (!keeps_range) places_[flat].gathered = {};
  return ok();
}

Result<void> FlatResidency::check_no_leases(const char* operation) const {
  for (std::uint32_t flat = 0; flat < places_.size(); ++flat) {
    if (places_[flat].leases == 0) continue;
    return Error(ErrorCode::failed_state, operation)
        .reason("a unit's lease is still held")
        .object(shards_.flats()[flat].name)
        .advice(
            "end every UnitLease before step(), abandon_step(), park(), digest(), initialize() and "
            "restore()");
  }
  return ok();
}

Result<void> FlatResidency::drop_all(const char* operation, Effects& effects) {
  PENSTOCK_TRY(check_no_leases(operation));
  while (!gathered_.empty()) PENSTOCK_TRY(drop(*gathered_.begin(), effects));
  return ok();
}

Result<void> FlatResidency::clear(const char* operation, Effects& effects) {
  PENSTOCK_TRY(check_no_leases(operation));
  return drop_unleased(effects);
}

Result<void> FlatResidency::drop_for_update(const char* operation, Effects& effects) {
  if (!limits_.whole) return drop_all(operation, effects);
  PENSTOCK_TRY(check_no_leases(operation));
  for (auto flat = gathered_.begin(); flat != gathered_.end();) {
    const std::uint32_t next = *flat++;
    if (!shards_.flats()[next].frozen) PENSTOCK_TRY(drop(next, effects, /*keeps_range=*/true));
  }
  return ok();
}

Result<void> FlatResidency::drop_in_place(std::uint32_t flat, Effects& effects) {
  if (!in_place_.parameters || !is_gathered(flat)) return ok();
  return drop(flat, effects, /*keeps_range=*/limits_.whole);
}

void FlatResidency::end_step() {
  for (Place& place : places_) place.accumulated = false;
  open_in_micro_batch_ = flats_with_gradient_;
  order_.end_step();
}

void FlatResidency::abandon_step(std::vector<std::uint32_t> units) {
  PENSTOCK_CHECK(check_no_leases("FlatResidency::abandon_step"));
  for (Place& place : places_) place = {.users = place.users};
  gathered_.clear();
  open_.clear();
  gathered_elements_ = ahead_elements_ = {};
  gathered_bytes_ = {};
  reducing_.clear();
  open_in_micro_batch_ = flats_with_gradient_;
  clearing_ = false;
  order_.restart(std::move(units));
}

Result<void> FlatResidency::begin_step(std::vector<std::uint32_t> units, Effects& effects) {
  // Flats that stay whole leave no gaps.
  const bool drops = clearing_ || (order_.has_uses() && !limits_.whole);
  if (drops) PENSTOCK_TRY(drop_unleased(effects));
  order_.forget_uses();
  order_.expect(std::move(units));
  return ok();
}

FlatResidency::Places FlatResidency::places() const {
  Places places;
  const auto at = [](const Reservation& range) { return range.held() ? range.offset() : ~std::uint64_t{}; };
  for (const Place& place : places_) {
    places.push_back(at(place.gathered));
    places.push_back(at(place.gradient));
    places.push_back(place.ahead ? 1 : 0);
  }
  reducing_.append_to(places);
  return places;
}

}  // namespace penstock::zero
