#include "zero/engine/engine_state.hpp"

namespace penstock::zero {

Result<std::vector<GradientSlot>> Engine::State::gradients(std::uint32_t unit, tiers::Stream& stream) {
  PENSTOCK_TRY(ready("Engine::gradients"));
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
  }
  gradient_stream_ = &stream;
  PENSTOCK_TRY(planned(residency_->open_gradients(unit, *this)));

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

Result<void> Engine::State::open_gradient(std::uint32_t index) {
  FlatState& flat = flats_[index];
  flat.full = at(residency_->gradient(index), flat.layout->length);
  flat.written.clear();
  for (const FlatSlot& gap : flat.layout->gaps()) {
    const DeviceSpan bytes = flat.full.slice(gap.begin, gap.count).bytes;
    if (auto filled = device_.fill_zero(gradient_stream_->handle(), bytes); !filled)
      return fail(filled.error());
  }
  return ok();
}

Result<void> Engine::State::reduce(std::uint32_t unit, tiers::Stream& stream) {
  PENSTOCK_TRY(ready("Engine::reduce"));
  PENSTOCK_TRY(check_unit("Engine::reduce", unit));
  for (const std::uint32_t index : shards.needed_by(unit)) {
    if (residency_->is_open(index)) continue;
    return Error::invalid_argument("Engine::reduce")
        .reason("reduced without a gradients() before it")
        .object(options_.model.units[unit].name);
  }
  for (const std::uint32_t index : shards.needed_by(unit)) {
    if (!residency_->close_gradient(index)) continue;
    if (auto recorded = stream.record(*flats_[index].grad_ready); !recorded) return fail(recorded.error());
    start_reduce(flats_[index]);
  }
  return ok();
}

void Engine::State::start_reduce(FlatState& flat) {
  const Config& config = options_.config;
  Landing landing{.accumulator_dtype = config.grad_accum_dtype,
                  .first = flat.landed == 0,
                  .last = flat.landed + 1 == micro_batches_};
  landing.straight = landing.first && config.grad_accum_dtype == config.dtype;
  ++flat.landed;
  flat.landing = {.ordered = false, .done = false, .error = {}};

  swap::Move move;
  move.then(make_reduce_hop(*hops_, flat, landing));
  move.on_event = [&flat](swap::HopState state, const Result<void>& result) {
    if (state == swap::HopState::done) flat.landing.done = true;
    if (!result) flat.landing.error = result.error();
  };
  runtime_.start(std::move(move));
}

Result<void> Engine::State::settle(std::uint32_t index) {
  FlatState& flat = flats_[index];
  PENSTOCK_TRY(heard(runtime_.wait_until([&] { return flat.landing.done; })));
  if (flat.landing.error) return fail(*flat.landing.error);
  return ok();
}

}  // namespace penstock::zero
