#include "zero/layout/flat_residency.hpp"

#include "zero/layout/padded.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace penstock::zero {

using tiers::Purpose;
using tiers::RangeAllocator;
using tiers::Reservation;

FlatResidency::FlatResidency(const ShardLayout& shards, DType dtype, InPlace in_place, Budgets budgets,
                             std::vector<std::uint32_t> units)
    : shards_(shards),
      dtype_(dtype),
      in_place_(in_place),
      budgets_(budgets),
      places_(shards.flats().size()),
      uses_(shards.flats().size()) {
  order_of_step_ = units;
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

ByteCount FlatResidency::gathered_size(std::uint32_t flat) const {
  return size(flat) + in_place_.lease_gap;
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
  if (!clearing_) {
    auto gathered = gather_needed(unit, effects);
    if (gathered) return gather_next(unit, effects);
    if (gathered.error().code() != ErrorCode::budget_too_small) return gathered;
  }
  // Gathered flats, even of this unit, may be where they leave no gap that is long enough: begin with free memory.
  PENSTOCK_TRY(drop_unleased(effects));
  PENSTOCK_TRY(gather_needed(unit, effects));
  return gather_next(unit, effects);
}

Result<void> FlatResidency::gather_needed(std::uint32_t unit, Effects& effects) {
  for (const std::uint32_t flat : shards_.needed_by(unit)) {
    if (is_gathered(flat)) continue;
    PENSTOCK_TRY_ASSIGN(auto range, reserve(gathered_size(flat), Purpose::gathered_flat, unit, effects));
    PENSTOCK_TRY(take_and_gather(flat, std::move(range), effects));
  }
  return ok();
}

Result<void> FlatResidency::gather_next(std::uint32_t unit, Effects& effects) {
  if (position_ >= order_.size()) return ok();
  for (const std::uint32_t flat : shards_.needed_by(order_[position_])) {
    if (is_gathered(flat)) continue;
    auto range = budgets_.gathered.reserve(gathered_size(flat), Purpose::gathered_flat);
    while (!range) {
      PENSTOCK_TRY_ASSIGN(auto dropped, drop_furthest(unit, effects));
      if (!dropped) return ok();
      range = budgets_.gathered.reserve(gathered_size(flat), Purpose::gathered_flat);
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
  const bool for_flat = purpose == Purpose::gathered_flat;
  tiers::MemoryBudget& budget = for_flat ? budgets_.gathered : budgets_.gradients;
  const bool one_budget = &budgets_.gathered == &budgets_.gradients;
  const bool dropping_helps = for_flat || one_budget, finishing_helps = !for_flat || one_budget;
  const auto end = for_flat ? RangeAllocator::End::low : RangeAllocator::End::high;
  while (true) {
    auto range = budget.reserve(size, purpose, end);
    if (range) return std::move(*range);
    // A reduction that is not the youngest has most likely completed; a flat that is dropped must be gathered again.
    if (finishing_helps && reducing_.size() > 1) {
      PENSTOCK_TRY(finish_oldest_gradient(effects));
      continue;
    }
    if (dropping_helps) {
      PENSTOCK_TRY_ASSIGN(auto dropped, drop_furthest(for_unit, effects));
      if (dropped) continue;
    }
    if (!finishing_helps || reducing_.empty()) return out_of_memory(budget, size);
    PENSTOCK_TRY(finish_oldest_gradient(effects));
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

/// Of the gathered flats that are not leased and neither `for_unit` nor the unit after it needs, drops the one
/// that is needed last. False when there is none.
Result<bool> FlatResidency::drop_furthest(std::uint32_t for_unit, Effects& effects) {
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

/// Drops every flat that is not leased. If a call fails, the next acquire(), open_gradients() or begin_step() continues
/// it, so that all ranks drop the same flats.
Result<void> FlatResidency::drop_unleased(Effects& effects) {
  clearing_ = true;
  PENSTOCK_TRY(finish_gradients(effects));
  for (auto flat = gathered_.begin(); flat != gathered_.end();) {
    const std::uint32_t next = *flat++;
    if (places_[next].leases == 0) PENSTOCK_TRY(drop(next, effects));
  }
  clearing_ = false;
  return ok();
}

Result<void> FlatResidency::drop(std::uint32_t flat, Effects& effects) {
  PENSTOCK_TRY(effects.drop(flat));
  gathered_.erase(flat);
  places_[flat].gathered = {};
  return ok();
}

Result<void> FlatResidency::check_no_leases(const char* operation) const {
  for (std::uint32_t flat = 0; flat < places_.size(); ++flat) {
    if (places_[flat].leases == 0) continue;
    return Error(ErrorCode::failed_state, operation)
        .reason("a unit's lease is still held")
        .object(shards_.flats()[flat].name)
        .advice("end every UnitLease before step(), abandon_step(), digest(), initialize() and restore()");
  }
  return ok();
}

Result<void> FlatResidency::drop_all(const char* operation, Effects& effects) {
  PENSTOCK_TRY(check_no_leases(operation));
  while (!gathered_.empty()) PENSTOCK_TRY(drop(*gathered_.begin(), effects));
  return ok();
}

/// All ranges before any is used: there may be no room for one of them.
Result<FlatResidency::Ranges> FlatResidency::reserve_gradients(std::uint32_t unit, Effects& effects) {
  Ranges ranges;
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
  return ranges;
}

Result<void> FlatResidency::open_gradients(std::uint32_t unit, Effects& effects) {
  if (clearing_) PENSTOCK_TRY(drop_unleased(effects));
  auto ranges = reserve_gradients(unit, effects);
  const bool one_budget = &budgets_.gathered == &budgets_.gradients;
  if (!ranges && ranges.error().code() == ErrorCode::budget_too_small && one_budget) {
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
  order_of_step_ = recording_;
  set_order(std::exchange(recording_, {}));
  position_ = 0;
}

void FlatResidency::abandon_step(std::vector<std::uint32_t> units) {
  PENSTOCK_CHECK(check_no_leases("FlatResidency::abandon_step"));
  for (Place& place : places_) place = {.users = place.users};
  gathered_.clear();
  reducing_.clear();
  recording_.clear();
  position_ = 0;
  clearing_ = false;
  acquiring_.reset();
  order_of_step_ = units;
  set_order(std::move(units));
}

Result<void> FlatResidency::begin_step(std::vector<std::uint32_t> units, Effects& effects) {
  if (!recording_.empty() || clearing_) {
    PENSTOCK_TRY(drop_unleased(effects));
    recording_.clear();
    position_ = 0;
    set_order(order_of_step_);
  }
  if (order_.size() != units.size()) set_order(std::move(units));
  return ok();
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

// More than any model has, and less than the sums of a few of these overflow.
constexpr ByteCount unlimited(std::uint64_t{1} << 60);

/// What a rehearsal has and does.
struct Rehearsal {
  const ShardLayout& shards;
  std::size_t units;
  DType dtype;
  InPlace in_place;
  ByteCount gathered_in_place;  // the budget of leases
  ByteCount device;             // the budget of everything else
  bool gradients = true;        // whether full gradients are opened
};

/// Rehearses the first `count` micro-batches of a step of `expected`. Returns where everything is after them.
Result<FlatResidency::Places> rehearse(const Rehearsal& with, tiers::Ledger& ledger, std::uint32_t count,
                                       std::uint32_t expected) {
  NoEffects none;
  tiers::Ledger unused;
  tiers::MemoryBudget device(tiers::Tier::device, with.device, ledger);
  tiers::MemoryBudget leases(tiers::Tier::host, with.gathered_in_place, unused, extent_alignment,
                             tiers::MemoryBudget::Ranges::counted);
  FlatResidency residency(with.shards, with.dtype, with.in_place,
                          {.gathered = with.in_place.parameters ? leases : device, .gradients = device},
                          unit_order(with.units, expected));
  for (std::uint64_t i = 0; i < std::uint64_t{count} * 2 * with.units; ++i) {
    const std::uint32_t unit = unit_at(i, with.units);
    PENSTOCK_TRY(residency.acquire(unit, none));
    residency.lease(unit);
    const bool reduces = with.gradients && i / with.units % 2 == 1;
    if (reduces) PENSTOCK_TRY(residency.open_gradients(unit, none));
    residency.release(unit);
    if (!reduces) continue;
    for (const std::uint32_t flat : with.shards.needed_by(unit)) (void)residency.close_gradient(flat);
  }
  return residency.places();
}

/// Rehearses steps of more and more micro-batches until decisions repeat, and of `micro_batches` at least. A
/// micro-batch looks ahead into the next one at most: what it does follows from where everything is when it begins, and
/// from whether it is the last. From the first repetition on, nothing is new.
Result<void> rehearse_until_repeated(const Rehearsal& with, tiers::Ledger& ledger,
                                     std::uint32_t micro_batches) {
  std::set<FlatResidency::Places> seen;
  for (std::uint32_t count = 1;; ++count) {
    PENSTOCK_TRY(rehearse(with, ledger, count, count));
    PENSTOCK_TRY_ASSIGN(auto places, rehearse(with, ledger, count, count + 1));
    const bool repeats = !seen.insert(std::move(places)).second;
    if (repeats || count >= std::max(micro_batches, rehearsed_micro_batches_max)) return ok();
  }
}

}  // namespace

Result<DevicePeaks> rehearse_steps(const ShardLayout& shards, std::size_t units, DType dtype,
                                   InPlace in_place, std::uint32_t micro_batches, ByteCount budget) {
  tiers::Ledger ledger;
  PENSTOCK_TRY(rehearse_until_repeated({.shards = shards,
                                        .units = units,
                                        .dtype = dtype,
                                        .in_place = in_place,
                                        .gathered_in_place = unlimited,
                                        .device = budget},
                                       ledger, micro_batches));
  return DevicePeaks{.gathered = ledger.line(tiers::Tier::device, Purpose::gathered_flat).peak,
                     .gradients = ledger.line(tiers::Tier::device, Purpose::full_gradient).peak};
}

Result<void> rehearse_leases(const ShardLayout& shards, std::size_t units, DType dtype, InPlace in_place,
                             ByteCount budget) {
  PENSTOCK_CHECK(in_place.parameters);
  tiers::Ledger ledger;
  return rehearse_until_repeated({.shards = shards,
                                  .units = units,
                                  .dtype = dtype,
                                  .in_place = in_place,
                                  .gathered_in_place = budget,
                                  .device = {},
                                  .gradients = false},
                                 ledger, 1);
}

}  // namespace penstock::zero
