#include "zero/layout/flat_residency.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace penstock::zero {

using tiers::Purpose;
using tiers::RangeAllocator;
using tiers::Reservation;

FlatResidency::FlatResidency(const ShardLayout& shards, DType dtype, InPlace in_place,
                             tiers::MemoryBudget& budget, std::vector<std::uint32_t> units)
    : shards_(shards),
      dtype_(dtype),
      in_place_(in_place),
      budget_(budget),
      places_(shards.flats().size()),
      uses_(shards.flats().size()) {
  set_order(std::move(units));
  expect_no_gradients({});
}

void FlatResidency::expect_no_gradients(std::span<const std::uint32_t> units) {
  for (std::uint32_t flat = 0; flat < places_.size(); ++flat) places_[flat].users = shards_.user_count(flat);
  for (const std::uint32_t unit : units) {
    for (const std::uint32_t flat : shards_.needed_by(unit)) --places_[flat].users;
  }
}

void FlatResidency::set_order(std::vector<std::uint32_t> units) {
  order_ = std::move(units);
  for (auto& uses : uses_) uses.clear();
  for (std::size_t i = 0; i < order_.size(); ++i) {
    for (const std::uint32_t flat : shards_.needed_by(order_[i])) uses_[flat].push_back(i);
  }
}

bool FlatResidency::needs(std::uint32_t unit, std::uint32_t flat) const {
  const auto needed = shards_.needed_by(unit);
  return std::find(needed.begin(), needed.end(), flat) != needed.end();
}

ByteCount FlatResidency::size(std::uint32_t flat) const {
  return size_of(dtype_) * shards_.flats()[flat].length.value();
}

/// Acquires from now until a unit needs `flat`, in the predicted order; the largest number when none does.
std::uint64_t FlatResidency::uses_until_needed(std::uint32_t flat) const {
  const auto& uses = uses_[flat];
  const auto next = std::lower_bound(uses.begin(), uses.end(), position_);
  return next == uses.end() ? std::numeric_limits<std::uint64_t>::max() : *next - position_;
}

FlatResidency::NotedUse FlatResidency::note_use(std::uint32_t unit) {
  NotedUse use{.acquiring_before = std::exchange(acquiring_, unit), .order_before = {}};
  use.repeated = use.acquiring_before == unit;
  if (use.repeated) return use;
  recording_.push_back(unit);
  // An order that differs from the prediction is followed from the next step on.
  if (position_ < order_.size() && order_[position_] != unit) {
    use.order_before = order_;
    set_order({});
  }
  ++position_;
  return use;
}

void FlatResidency::undo(NotedUse use) {
  if (use.repeated) return;
  acquiring_ = use.acquiring_before;
  recording_.pop_back();
  --position_;
  if (use.order_before) set_order(std::move(*use.order_before));
}

Result<void> FlatResidency::acquire(std::uint32_t unit, Effects& effects) {
  NotedUse use = note_use(unit);
  auto gathered = gather_unit(unit, effects);
  if (!gathered) undo(std::move(use));
  return gathered;
}

Result<void> FlatResidency::gather_unit(std::uint32_t unit, Effects& effects) {
  for (const std::uint32_t flat : shards_.needed_by(unit)) {
    if (is_gathered(flat)) continue;
    Reservation range;
    if (!in_place_.parameters) {
      PENSTOCK_TRY_ASSIGN(range, reserve(size(flat), Purpose::gathered_flat, unit, effects));
    }
    PENSTOCK_TRY(take_and_gather(flat, std::move(range), effects));
  }
  return gather_next(unit, effects);
}

Result<void> FlatResidency::gather_next(std::uint32_t unit, Effects& effects) {
  if (position_ >= order_.size() || in_place_.parameters)
    return ok();  // in place there is nothing to prefetch
  for (const std::uint32_t flat : shards_.needed_by(order_[position_])) {
    if (is_gathered(flat)) continue;
    auto range = budget_.reserve(size(flat), Purpose::gathered_flat);
    while (!range) {
      PENSTOCK_TRY_ASSIGN(auto dropped, drop_furthest(unit, effects));
      if (!dropped) return ok();
      range = budget_.reserve(size(flat), Purpose::gathered_flat);
    }
    PENSTOCK_TRY(take_and_gather(flat, std::move(*range), effects));
  }
  return ok();
}

Result<void> FlatResidency::take_and_gather(std::uint32_t flat, Reservation range, Effects& effects) {
  places_[flat].gathered = std::move(range);
  auto started = effects.gather(flat);
  if (started) {
    gathered_.insert(flat);
  } else {
    places_[flat].gathered = {};
  }
  return started;
}

void FlatResidency::lease(std::uint32_t unit) {
  for (const std::uint32_t flat : shards_.needed_by(unit)) ++places_[flat].leases;
  acquiring_.reset();
}

void FlatResidency::release(std::uint32_t unit) {
  for (const std::uint32_t flat : shards_.needed_by(unit)) {
    PENSTOCK_CHECK(places_[flat].leases > 0);
    --places_[flat].leases;
  }
}

/// Room for what must be had now. Gradients grow from the other end, so that they do not cut the room of flats.
Result<Reservation> FlatResidency::reserve(ByteCount size, Purpose purpose, std::uint32_t for_unit,
                                           Effects& effects) {
  const auto end = purpose == Purpose::gathered_flat ? RangeAllocator::End::low : RangeAllocator::End::high;
  while (true) {
    auto range = budget_.reserve(size, purpose, end);
    if (range) return std::move(*range);
    // A reduction that is not the youngest has most likely completed; a flat that is dropped must be gathered again.
    if (reducing_.size() > 1) {
      PENSTOCK_TRY(finish_oldest_gradient(effects));
      continue;
    }
    PENSTOCK_TRY_ASSIGN(auto dropped, drop_furthest(for_unit, effects));
    if (dropped) continue;
    if (reducing_.empty()) return out_of_memory(size);
    PENSTOCK_TRY(finish_oldest_gradient(effects));
  }
}

Error FlatResidency::out_of_memory(ByteCount size) const {
  Error error = budget_.too_small(size).advice(
      "end a UnitLease, or pass open gradients to reduce(), then repeat the call; or raise "
      "penstock.device_budget");
  for (std::uint32_t flat = 0; flat < places_.size(); ++flat) {
    const std::string& name = shards_.flats()[flat].name;
    if (places_[flat].leases > 0) error = std::move(error).note("leased  " + name);
    if (is_open(flat)) error = std::move(error).note("open    gradient of " + name);
  }
  return error;
}

/// Of the gathered flats that are not leased and neither `for_unit` nor the unit after it needs, drops the one
/// that is needed last. False when there is none.
Result<bool> FlatResidency::drop_furthest(std::uint32_t for_unit, Effects& effects) {
  if (in_place_.parameters) return false;  // they take no room
  std::optional<std::uint32_t> furthest;
  std::uint64_t distance = 0;
  for (const std::uint32_t flat : gathered_) {
    if (places_[flat].leases > 0 || needs(for_unit, flat)) continue;
    const std::uint64_t until = uses_until_needed(flat);
    if (until == 0) continue;
    if (!furthest || until > distance) furthest = flat, distance = until;
  }
  if (!furthest) return false;
  PENSTOCK_TRY(drop(*furthest, effects));
  return true;
}

Result<void> FlatResidency::drop(std::uint32_t flat, Effects& effects) {
  PENSTOCK_TRY(effects.drop(flat));
  gathered_.erase(flat);
  places_[flat].gathered = {};
  return ok();
}

Result<void> FlatResidency::check_no_leases() const {
  for (std::uint32_t flat = 0; flat < places_.size(); ++flat) {
    if (places_[flat].leases == 0) continue;
    return Error(ErrorCode::failed_state, "FlatResidency")
        .reason("a unit's lease is still held")
        .object(shards_.flats()[flat].name)
        .advice("end every UnitLease before step(), abandon_step(), digest(), initialize() and restore()");
  }
  return ok();
}

Result<void> FlatResidency::drop_all(Effects& effects) {
  PENSTOCK_TRY(check_no_leases());
  while (!gathered_.empty()) PENSTOCK_TRY(drop(*gathered_.begin(), effects));
  return ok();
}

Result<void> FlatResidency::open_gradients(std::uint32_t unit, Effects& effects) {
  // All ranges first: none is in use when there is no room for one of them.
  std::vector<std::pair<std::uint32_t, Reservation>> ranges;
  for (const std::uint32_t flat : shards_.needed_by(unit)) {
    if (is_open(flat)) continue;
    // The last micro-batch of this flat still uses its range until it is accumulated.
    while (is_reducing(flat)) PENSTOCK_TRY(finish_oldest_gradient(effects));
    Reservation range;
    if (!in_place_.first_gradients || places_[flat].accumulated) {
      PENSTOCK_TRY_ASSIGN(range, reserve(size(flat), Purpose::full_gradient, unit, effects));
    }
    ranges.emplace_back(flat, std::move(range));
  }
  for (auto& [flat, range] : ranges) {
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
  if (--places_[flat].pending_users > 0) return false;
  reducing_.push_back(flat);
  places_[flat].accumulated = true;
  return true;
}

bool FlatResidency::is_reducing(std::uint32_t flat) const {
  return std::find(reducing_.begin(), reducing_.end(), flat) != reducing_.end();
}

Result<void> FlatResidency::finish_oldest_gradient(Effects& effects) {
  PENSTOCK_TRY(effects.finish_gradient(reducing_.front()));
  places_[reducing_.front()].gradient = {};
  reducing_.pop_front();
  return ok();
}

Result<void> FlatResidency::finish_gradients(Effects& effects) {
  while (!reducing_.empty()) PENSTOCK_TRY(finish_oldest_gradient(effects));
  return ok();
}

void FlatResidency::end_step() {
  for (Place& place : places_) place.accumulated = false;
  set_order(std::exchange(recording_, {}));
  position_ = 0;
}

void FlatResidency::abandon_step(std::vector<std::uint32_t> units) {
  PENSTOCK_CHECK(check_no_leases());
  for (Place& place : places_) place = {.users = place.users};
  gathered_.clear();
  reducing_.clear();
  recording_.clear();
  position_ = 0;
  acquiring_.reset();
  set_order(std::move(units));
}

void FlatResidency::expect(std::vector<std::uint32_t> units) {
  if (recording_.empty() && order_.size() != units.size()) set_order(std::move(units));
}

FlatResidency::Places FlatResidency::places() const {
  Places places;
  const auto at = [](const Reservation& range) { return range.held() ? range.offset() : ~std::uint64_t{}; };
  for (const Place& place : places_) {
    places.push_back(at(place.gathered));
    places.push_back(at(place.gradient));
  }
  places.insert(places.end(), reducing_.begin(), reducing_.end());
  return places;
}

namespace {
/// Acquire number `i` of a step: each micro-batch acquires the units forward, then backward.
std::uint32_t unit_at(std::uint64_t i, std::uint64_t units) {
  const std::uint64_t place = i % (2 * units);
  return static_cast<std::uint32_t>(place < units ? place : 2 * units - 1 - place);
}
}  // namespace

std::vector<std::uint32_t> unit_order(std::size_t units, std::uint32_t micro_batches) {
  constexpr std::uint64_t predicted_max = 1 << 20;
  const std::uint64_t one = 2 * units, all = one * micro_batches;
  std::vector<std::uint32_t> order(std::min(all, std::max(one, predicted_max)));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = unit_at(i, units);
  return order;
}

namespace {
// Steps of more micro-batches are rehearsed only when the caller asks for them.
constexpr std::uint32_t rehearsed_micro_batches_max = 16;

class NoEffects final : public FlatResidency::Effects {
  Result<void> gather(std::uint32_t) override { return ok(); }
  Result<void> drop(std::uint32_t) override { return ok(); }
  Result<void> open_gradient(std::uint32_t) override { return ok(); }
  Result<void> finish_gradient(std::uint32_t) override { return ok(); }
};
}  // namespace

Result<DevicePeaks> rehearse_steps(const ShardLayout& shards, std::size_t units, DType dtype,
                                   InPlace in_place, std::uint32_t micro_batches, ByteCount budget) {
  tiers::Ledger ledger;
  NoEffects none;
  // The first `count` micro-batches of a step of `expected`; where everything is after them.
  const auto rehearse = [&](std::uint32_t count, std::uint32_t expected) -> Result<FlatResidency::Places> {
    tiers::MemoryBudget memory(tiers::Tier::device, budget, ledger);
    FlatResidency residency(shards, dtype, in_place, memory, unit_order(units, expected));
    for (std::uint64_t i = 0; i < std::uint64_t{count} * 2 * units; ++i) {
      const std::uint32_t unit = unit_at(i, units);
      PENSTOCK_TRY(residency.acquire(unit, none));
      residency.lease(unit);
      const bool backward = i / units % 2 == 1;
      if (backward) PENSTOCK_TRY(residency.open_gradients(unit, none));
      residency.release(unit);
      if (!backward) continue;
      for (const std::uint32_t flat : shards.needed_by(unit)) (void)residency.close_gradient(flat);
    }
    return residency.places();
  };
  // A micro-batch looks ahead into the next one at most: what it does follows from where everything is when it
  // begins, and from whether it is the last. From the first repetition on, nothing is new.
  std::set<FlatResidency::Places> seen;
  for (std::uint32_t count = 1;; ++count) {
    PENSTOCK_TRY(rehearse(count, count));
    PENSTOCK_TRY_ASSIGN(auto places, rehearse(count, count + 1));
    const bool repeats = !seen.insert(std::move(places)).second;
    if (repeats || count >= std::max(micro_batches, rehearsed_micro_batches_max)) break;
  }
  return DevicePeaks{.gathered = ledger.line(tiers::Tier::device, Purpose::gathered_flat).peak,
                     .gradients = ledger.line(tiers::Tier::device, Purpose::full_gradient).peak};
}

}  // namespace penstock::zero
