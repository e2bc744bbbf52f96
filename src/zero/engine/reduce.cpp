#include "zero/engine/engine_state.hpp"

#include <algorithm>

namespace penstock::zero {

Result<std::vector<GradientSlot>> Engine::State::gradients(std::uint32_t unit, tiers::Stream& stream) {
  PENSTOCK_TRY(usable("Engine::gradients"));
  PENSTOCK_TRY(check_unit("Engine::gradients", unit));
  for (const std::uint32_t index : shards.needed_by(unit)) {
    FlatState& flat = flats_[index];
    if (flat.landed == micro_batches_) {
      return Error::invalid_argument("Engine::gradients")
          .reason("every micro-batch of this step was reduced")
          .object(flat.layout->name)
          .wanted(micro_batches_)
          .got(flat.landed + 1);
    }
    if (flat.pending_users == 0) PENSTOCK_TRY(open_full_gradient(flat, unit, stream));
  }

  std::vector<GradientSlot> slots;
  const auto slot = [&](ParameterId id) {
    const ShardLayout::Place place = shards.place(id);
    FlatState& flat = flats_[place.flat];
    slots.push_back(
        {.tensor = flat.full.slice(place.begin, place.count), .accumulate = !flat.written.insert(id).second});
  };
  const UnitLayout& layout = options_.model.units[unit];
  for (std::uint32_t i = 0; i < layout.parameters.size(); ++i) slot({unit, i});
  for (const ParameterId& shared : layout.shared) slot(shared);
  return slots;
}

Result<void> Engine::State::open_full_gradient(FlatState& flat, std::uint32_t for_unit,
                                               tiers::Stream& stream) {
  // The last micro-batch of this flat still occupies its state until it has landed.
  while (!landings_.empty() && std::any_of(landings_.begin(), landings_.end(),
                                           [&](std::uint32_t f) { return &flats_[f] == &flat; })) {
    PENSTOCK_TRY(settle_oldest_landing());
  }
  auto range = reserve_on_device(size_of(options_.config.dtype) * flat.layout->length.value(),
                                 tiers::Purpose::full_gradient, for_unit);
  if (!range) return fail(range.error());
  flat.full = at(*range, flat.layout->length);
  flat.full_range = std::move(*range);
  flat.pending_users = shards.user_count(static_cast<std::uint32_t>(&flat - flats_.data()));
  flat.written.clear();
  for (const FlatSlot& gap : flat.layout->gaps()) {
    PENSTOCK_TRY(device_.fill_zero(stream.handle(), flat.full.slice(gap.begin, gap.count).bytes));
  }
  return ok();
}

Result<void> Engine::State::reduce(std::uint32_t unit, tiers::Stream& stream) {
  PENSTOCK_TRY(usable("Engine::reduce"));
  for (const std::uint32_t index : shards.needed_by(unit)) {
    FlatState& flat = flats_[index];
    if (flat.pending_users == 0) {
      return Error::invalid_argument("Engine::reduce")
          .reason("reduced without a gradients() before it")
          .object(options_.model.units[unit].name);
    }
    if (--flat.pending_users > 0) continue;
    PENSTOCK_TRY(stream.record(*flat.grad_ready));
    start_reduce(flat);
    landings_.push_back(index);
  }
  return ok();
}

void Engine::State::start_reduce(FlatState& flat) {
  const Config& config = options_.config;
  Landing landing{.accumulator_dtype = config.grad_accum_dtype,
                  .first = flat.landed == 0,
                  .last = flat.landed + 1 == micro_batches_};
  landing.straight = landing.first && config.grad_accum_dtype == config.dtype;
  runtime_.use(flat.gradient);
  ++flat.landed;
  flat.landing = {.ordered = false, .done = false, .error = {}};

  swap::Move move;
  move.hops.push_back(make_reduce_hop(*hops_, flat, landing));
  move.on_event = [&flat](swap::HopState state, const Result<void>& result) {
    if (state == swap::HopState::done) flat.landing.done = true;
    if (!result) flat.landing.error = result.error();
  };
  runtime_.start(std::move(move));
}

/// Waits until the oldest landing has ended, and frees its full gradient.
Result<void> Engine::State::settle_oldest_landing() {
  FlatState& flat = flats_[landings_.front()];
  landings_.pop_front();
  runtime_.wait_until([&] { return flat.landing.done; });
  flat.full_range = {};
  if (flat.landing.error) return fail(*flat.landing.error);
  return ok();
}

}  // namespace penstock::zero
