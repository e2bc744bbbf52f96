#include "zero/engine/engine_state.hpp"

#include <algorithm>

namespace penstock::zero {

DeviceTensor Engine::State::at(const tiers::Reservation& range, ElementCount count) const {
  const DType dtype = options_.config.dtype;
  return {arena_.subspan(ByteCount(range.offset()), size_of(dtype) * count.value()), dtype};
}

Result<std::vector<DeviceTensor>> Engine::State::acquire(std::uint32_t unit, tiers::Stream& stream) {
  PENSTOCK_TRY(ready("Engine::acquire"));
  PENSTOCK_TRY(check_unit("Engine::acquire", unit));
  PENSTOCK_TRY(heard(runtime_.check_stores()));
  PENSTOCK_TRY(planned(residency_->acquire(unit, *this)));
  for (const std::uint32_t flat : shards.needed_by(unit)) PENSTOCK_TRY(wait_for_gather(flats_[flat]));
  for (const std::uint32_t index : shards.needed_by(unit)) {
    FlatState& flat = flats_[index];
    if (auto waits = stream.wait(*flat.gathered_event); !waits) return fail(waits.error()).error();
    flat.waited_for = true;
  }
  residency_->lease(unit);
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
  residency_->release(unit);
  // Whoever writes into a range that is free from now on waits for this point.
  if (auto recorded = unit_streams_[unit]->record(*compute_progress_); !recorded)
    (void)fail(recorded.error());
}

/// What the plan has rehearsed does not fail for want of room. Where the trainer holds more at a time than
/// that, no rank can go on.
Result<void> Engine::State::planned(Result<void> decided) {
  if (!decided && decided.error().code() == ErrorCode::budget_too_small) return fail(decided.error());
  return decided;
}

Result<void> Engine::State::wait_for_gather(FlatState& flat) {
  PENSTOCK_TRY(heard(runtime_.wait_until([&] { return flat.gather.ordered || flat.gather.error; })));
  if (flat.gather.error) return fail(*flat.gather.error);
  return ok();
}

Result<void> Engine::State::gather(std::uint32_t index) {
  FlatState& flat = flats_[index];
  // The accelerator may be behind: its last gather can still be reading the shard's host copy.
  runtime_.wait_ignoring_stores([&] { return flat.gather.done; });
  flat.gathered = at(residency_->gathered(index), flat.layout->length);
  flat.waited_for = false;
  flat.gather = {.ordered = false, .done = false, .error = {}};

  swap::Move move;
  move.then(make_gather_hop(*hops_, flat, runtime_.request(flat.shard, swap::Access::read)));
  move.on_event = [&flat](swap::HopState state, const Result<void>& result) {
    flat.gather.ordered = true;
    if (state == swap::HopState::done) flat.gather.done = true;
    if (!result) flat.gather.error = result.error();
  };
  runtime_.start(std::move(move));
  return ok();
}

Result<void> Engine::State::drop(std::uint32_t index) {
  FlatState& flat = flats_[index];
  if (flat.waited_for) return ok();
  // Prefetched and never used: no compute stands behind its gather, so its end is waited for here.
  PENSTOCK_TRY(wait_for_gather(flat));
  if (auto passed = runtime_.wait_for(*flat.gathered_event); !passed) return fail(passed.error());
  return ok();
}

}  // namespace penstock::zero
