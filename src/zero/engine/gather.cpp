#include "zero/engine/engine_state.hpp"

#include <algorithm>
#include <limits>

// Gathered flats on the device. Every decision here is made at a program point, from the layout, the
// configuration and the order of use alone, so that all ranks decide the same.

namespace penstock::zero {

bool Engine::State::needs(std::uint32_t unit, std::uint32_t flat) const {
  const auto needed = shards.needed_by(unit);
  return std::find(needed.begin(), needed.end(), flat) != needed.end();
}

DeviceTensor Engine::State::at(const tiers::Reservation& range, ElementCount count) const {
  const DType dtype = options_.config.dtype;
  return {arena_.subspan(ByteCount(range.offset()), size_of(dtype) * count.value()), dtype};
}

/// Acquires from now until a unit needs `flat`, in the predicted order; the largest number when none does.
std::uint64_t Engine::State::uses_until_needed(std::uint32_t flat) const {
  for (std::size_t i = unit_position_; i < unit_order_.size(); ++i) {
    if (needs(unit_order_[i], flat)) return i - unit_position_;
  }
  return std::numeric_limits<std::uint64_t>::max();
}

Result<std::vector<DeviceTensor>> Engine::State::acquire(std::uint32_t unit, tiers::Stream& stream) {
  PENSTOCK_TRY(usable("Engine::acquire"));
  PENSTOCK_TRY(check_unit("Engine::acquire", unit));
  recording_.push_back(unit);
  // An order that differs from the prediction is followed from the next step on.
  if (unit_position_ < unit_order_.size() && unit_order_[unit_position_] != unit) unit_order_.clear();
  ++unit_position_;

  for (const std::uint32_t flat : shards.needed_by(unit)) PENSTOCK_TRY(ensure_gathering(flat, unit));
  prefetch_next_unit(unit);

  for (const std::uint32_t index : shards.needed_by(unit)) {
    FlatState& flat = flats_[index];
    PENSTOCK_TRY(wait_for_gather(flat));
    PENSTOCK_TRY(stream.wait(*flat.gathered_event));
    flat.waited_for = true;
    ++flat.leases;
  }
  unit_streams_[unit] = &stream;

  std::vector<DeviceTensor> views;
  const auto view = [&](ParameterId id) {
    const ShardLayout::Place place = shards.place(id);
    views.push_back(flats_[place.flat].gathered.slice(place.begin, place.count));
  };
  const UnitLayout& layout = options_.model.units[unit];
  for (std::uint32_t i = 0; i < layout.parameters.size(); ++i) view({unit, i});
  for (const ParameterId& shared : layout.shared) view(shared);
  return views;
}

void Engine::State::release(std::uint32_t unit) noexcept {
  for (const std::uint32_t index : shards.needed_by(unit)) --flats_[index].leases;
  // Whoever writes into a range that is free from now on waits for this point.
  if (auto recorded = unit_streams_[unit]->record(*compute_progress_); !recorded)
    (void)fail(recorded.error());
}

Result<void> Engine::State::wait_for_gather(FlatState& flat) {
  runtime_.wait_until([&] { return flat.gather.ordered || flat.gather.error; });
  if (flat.gather.error) return fail(*flat.gather.error);
  return ok();
}

Result<void> Engine::State::ensure_gathering(std::uint32_t index, std::uint32_t for_unit) {
  FlatState& flat = flats_[index];
  if (flat.present) return ok();
  auto range = reserve_on_device(size_of(options_.config.dtype) * flat.layout->length.value(),
                                 tiers::Purpose::gathered_flat, for_unit);
  if (!range) return fail(range.error());
  start_gather(index, std::move(*range));
  return ok();
}

/// Gathers what the next unit needs, where there is room that nothing sooner needs.
void Engine::State::prefetch_next_unit(std::uint32_t unit) {
  if (unit_position_ >= unit_order_.size()) return;
  const std::uint32_t next = unit_order_[unit_position_];
  for (const std::uint32_t index : shards.needed_by(next)) {
    FlatState& flat = flats_[index];
    if (flat.present) continue;
    const ByteCount size = size_of(options_.config.dtype) * flat.layout->length.value();
    auto range = device_budget_->reserve(size, tiers::Purpose::gathered_flat);
    while (!range && drop_furthest_flat(unit)) {
      range = device_budget_->reserve(size, tiers::Purpose::gathered_flat);
    }
    if (!range) return;
    start_gather(index, std::move(*range));
  }
}

void Engine::State::start_gather(std::uint32_t index, tiers::Reservation range) {
  FlatState& flat = flats_[index];
  // The accelerator may be behind: its last gather can still be reading the shard's host copy.
  runtime_.wait_until([&] { return flat.gather.done; });
  flat.gathered = at(range, flat.layout->length);
  flat.gathered_range = std::move(range);
  flat.present = true;
  flat.waited_for = false;
  flat.gather = {.ordered = false, .done = false, .error = {}};

  runtime_.use(flat.shard);
  const Ticket lease = runtime_.request(flat.shard, swap::Access::read);
  swap::Move move;
  move.hops.push_back(make_gather_hop(*hops_, flat, lease));
  move.on_event = [&flat](swap::HopState state, const Result<void>& result) {
    flat.gather.ordered = true;
    if (state == swap::HopState::done) flat.gather.done = true;
    if (!result) flat.gather.error = result.error();
  };
  runtime_.start(std::move(move));
}

Result<tiers::Reservation> Engine::State::reserve_on_device(ByteCount size, tiers::Purpose purpose,
                                                            std::uint32_t for_unit) {
  while (true) {
    auto range = device_budget_->reserve(size, purpose);
    if (range) return range;
    // A landing that is not the youngest has most likely ended; a flat that goes must be gathered again.
    if (landings_.size() > 1) {
      PENSTOCK_TRY(settle_oldest_landing());
    } else if (!drop_furthest_flat(for_unit)) {
      if (landings_.empty()) return range;
      PENSTOCK_TRY(settle_oldest_landing());
    }
  }
}

/// Of the gathered flats that nobody holds and neither `for_unit` nor the unit after it needs, drops the one
/// that is needed last.
bool Engine::State::drop_furthest_flat(std::uint32_t for_unit) {
  FlatState* furthest = nullptr;
  std::uint64_t distance = 0;
  for (std::uint32_t f = 0; f < flats_.size(); ++f) {
    FlatState& flat = flats_[f];
    if (!flat.present || flat.leases > 0 || needs(for_unit, f)) continue;
    const std::uint64_t until = uses_until_needed(f);
    if (until == 0) continue;
    if (furthest == nullptr || until > distance) furthest = &flat, distance = until;
  }
  return furthest != nullptr && drop(*furthest).has_value();
}

Result<void> Engine::State::drop(FlatState& flat) {
  if (!flat.waited_for) {
    // Prefetched and never used: no compute stands behind its gather, so its end is waited for here.
    PENSTOCK_TRY(wait_for_gather(flat));
    if (auto passed = runtime_.wait_for(*flat.gathered_event); !passed) return fail(passed.error());
  }
  flat.gathered_range = {};
  flat.present = false;
  return ok();
}

}  // namespace penstock::zero
