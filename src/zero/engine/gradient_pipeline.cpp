#include "zero/engine/gradient_pipeline.hpp"

#include "base/splitmix64.hpp"
#include "zero/engine/gradient_hops.hpp"

#include <algorithm>
#include <optional>
#include <string>

namespace penstock::zero {

void GradientPipeline::begin_step(std::uint32_t micro_batches, std::vector<std::uint32_t> without_gradient) {
  micro_batches_ = micro_batches;
  without_gradient_ = std::move(without_gradient);
  for (UnitState& unit : units_) unit.absent = false;
  for (const std::uint32_t unit : without_gradient_) units_[unit].absent = true;
  // Only its owner decides: a unit can be listed without the owner of a parameter that it shares.
  for (FlatState& flat : context_.flats)
    flat.grad.absent = flat.layout->frozen || units_[flat.layout->unit].absent;
}

std::size_t GradientPipeline::units_to_reduce() const {
  std::size_t count = 0;
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit)
    if (!units_[unit].absent && !context_.shards.trained_by(unit).empty()) ++count;
  return count;
}

std::uint32_t GradientPipeline::micro_batches_begun() const {
  std::uint32_t reduced = 0;
  for (const FlatState& flat : context_.flats) reduced = std::max(reduced, flat.grad.closed_count);
  return std::min(micro_batches_, reduced + 1);
}

Result<void> GradientPipeline::check_expected(const char* operation, std::uint32_t unit) const {
  if (units_[unit].absent) {
    return Error::invalid_argument(operation)
        .reason("the unit gets no gradient in this step")
        .object(context_.model.units[unit].name)
        .advice("leave it out of StepOptions::units_without_gradient, or skip gradients() and reduce()");
  }
  const auto trained = context_.shards.trained_by(unit);
  if (trained.empty()) {
    return Error::invalid_argument(operation)
        .reason("all parameters of the unit are frozen")
        .object(context_.model.units[unit].name)
        .advice("skip gradients() and reduce() for this unit, or clear OptimizerGroup::frozen");
  }
  for (const std::uint32_t index : trained) {
    const FlatState& flat = context_.flats[index];
    if (flat.grad.closed_count >= micro_batches_) {
      return Error::invalid_argument(operation)
          .reason("every micro-batch of this step was already reduced")
          .object(flat.layout->name)
          .wanted("at most " + std::to_string(micro_batches_))
          .got(flat.grad.closed_count + 1)
          .advice("call step(), or begin_step() with more StepOptions::micro_batches");
    }
    if (units_[unit].written <= flat.grad.closed_count) continue;
    return Error::invalid_argument(operation)
        .reason("the unit's gradient of this micro-batch was already reduced")
        .object(context_.model.units[unit].name)
        .advice("first reduce the other units that share " + flat.layout->name);
  }
  return ok();
}

Result<void> GradientPipeline::open(FlatState& flat, const tiers::Reservation& range, tiers::Stream& stream) {
  PENSTOCK_TRY(wait_for_accumulation(flat));  // of its last micro-batch
  flat.grad.is_of_update = false;
  if (range.held()) {
    for (const tiers::Fence& fence : context_.fences.take(range.offset(), range.size())) {
      if (auto waits = stream.wait(*fence); !waits) return context_.fail(waits.error());
    }
    flat.grad.full = context_.at(range, flat.layout->length);
  } else {
    auto lease = context_.internals.acquire(flat.gradient, swap::Access::overwrite);
    if (!lease) return context_.fail_unless_retryable(lease.error());
    flat.grad.in_place = std::move(*lease);
    flat.grad.full = context_.on_device(flat.grad.in_place.bytes(), flat.layout->length);
  }
  flat.grad.written.clear();
  for (const FlatSlot& gap : flat.layout->gaps()) {
    const DeviceSpan bytes = flat.grad.full.slice(gap.begin, gap.count).bytes;
    if (auto filled = context_.device.fill_zero(stream.handle(), bytes); !filled) {
      return context_.fail(filled.error());
    }
  }
  flat.grad.written_by.clear();
  return is_shared(flat) ? note_written(flat, stream) : ok();
}

bool GradientPipeline::is_shared(const FlatState& flat) const {
  return context_.shards.user_count(static_cast<std::uint32_t>(&flat - context_.flats.data())) > 1;
}

Result<void> GradientPipeline::note_written(FlatState& flat, tiers::Stream& stream) {
  auto fence = context_.events.record(stream);
  if (!fence) return context_.fail(fence.error());
  flat.grad.written_by.push_back(*std::move(fence));
  return ok();
}

Result<void> GradientPipeline::wait_for_other_units(const FlatState& flat, tiers::Stream& stream) {
  for (const tiers::Fence& written : flat.grad.written_by) {
    if (auto waits = stream.wait(*written); !waits) return context_.fail(waits.error());
  }
  return ok();
}

Result<std::vector<GradientSlot>> GradientPipeline::slots(const char* operation, std::uint32_t unit,
                                                          tiers::Stream& stream) {
  const bool again = units_[unit].open;
  const auto flats = context_.shards.trained_by(unit);
  const auto shared = [&](std::uint32_t flat) { return is_shared(context_.flats[flat]); };
  if (again && std::any_of(flats.begin(), flats.end(), shared)) {
    return Error::invalid_argument(operation)
        .reason("the unit's gradient is being written, and is added to that of another unit")
        .object(context_.model.units[unit].name)
        .advice("pass the first result to reduce(), or call abandon_step()");
  }
  for (const std::uint32_t flat : flats) PENSTOCK_TRY(wait_for_other_units(context_.flats[flat], stream));
  std::vector<GradientSlot> slots;
  for (const ParameterId id : context_.model.parameters_of(unit)) {
    if (context_.is_frozen(id)) {
      slots.emplace_back();
      continue;
    }
    const ShardLayout::Place place = context_.shards.place(id);
    GradientFlat& grad = context_.flats[place.flat].grad;
    const bool first = grad.written.insert(id).second;
    slots.push_back({.tensor = grad.full.slice(place.begin, place.count), .accumulate = !first && !again});
  }
  units_[unit].open = true;
  return slots;
}

Result<void> GradientPipeline::close(std::uint32_t unit, tiers::Stream& stream) {
  units_[unit].open = false;
  ++units_[unit].written;
  for (const std::uint32_t flat : context_.shards.trained_by(unit)) {
    if (is_shared(context_.flats[flat])) PENSTOCK_TRY(note_written(context_.flats[flat], stream));
  }
  return ok();
}

Result<void> GradientPipeline::close_flat(FlatState& flat, tiers::Stream& stream) {
  PENSTOCK_TRY(wait_for_other_units(flat, stream));
  flat.grad.written_by.clear();
  if (auto recorded = stream.record(*flat.grad.written_event); !recorded) {
    return context_.fail(recorded.error());
  }
  ++flat.grad.closed_count;
  return ok();
}

void GradientPipeline::reduce(std::span<const std::uint32_t> flats) {
  std::vector<WrittenGradient> bucket;
  for (const std::uint32_t index : flats) {
    FlatState& flat = context_.flats[index];
    const std::uint32_t number = flat.grad.closed_count;
    bucket.push_back({.flat = &flat, .how = {.first = number == 1, .last = number == micro_batches_}});
  }
  const FlatState& first = *bucket.front().flat;
  CollectiveSignature signature = context_.signature(CollectiveSignature::Subject::gradients, first);
  signature.micro_batch = first.grad.closed_count - 1;
  for (const std::uint32_t index : flats.subspan(1))
    signature.others = splitmix64_add(signature.others, index);
  std::vector<swap::Move> moves = make_gradient_moves(context_, bucket, signature);
  for (std::size_t i = 0; i < bucket.size(); ++i)
    context_.start(std::move(moves[i]), bucket[i].flat->grad.reduction,
                   {"reductions", bucket[i].flat->layout->name, {}, of_gradients});
}

Result<void> GradientPipeline::finish_use(FlatState& flat, const tiers::Reservation& range) {
  const MoveProgress& reduction = flat.grad.reduction;
  std::optional<Error> error;  // copied under the lock, because the move may be in flight
  const auto is_ordered = [&] {
    error = reduction.error;
    return reduction.ordered;
  };
  PENSTOCK_TRY(
      context_.fail_unless_retryable(context_.internals.wait_until(is_ordered, swap::StallCause::gradients)));
  if (error) return context_.fail(*std::move(error));
  if (!flat.grad.is_of_update) flat.grad.in_place.end();
  if (range.held()) context_.fences.release(range.offset(), range.size(), {flat.grad.copied_out});
  return ok();
}

Result<void> GradientPipeline::wait_for_accumulation(FlatState& flat) {
  const MoveProgress& reduction = flat.grad.reduction;
  PENSTOCK_TRY(context_.fail_unless_retryable(
      context_.internals.wait_until([&] { return reduction.done; }, swap::StallCause::gradients)));
  if (reduction.error) return context_.fail(*reduction.error);
  return ok();
}

Result<void> GradientPipeline::finish_reductions() {
  for (FlatState& flat : context_.flats) PENSTOCK_TRY(wait_for_accumulation(flat));
  return ok();
}

bool GradientPipeline::idle() const {
  return std::all_of(context_.flats.begin(), context_.flats.end(),
                     [](const FlatState& flat) { return flat.grad.reduction.done; });
}

Result<void> GradientPipeline::check_complete() const {
  constexpr std::size_t named_max = 3;
  std::size_t wanted = 0, missing = 0;  // units
  std::string names;
  std::optional<std::uint32_t> least;
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit) {
    const UnitState& state = units_[unit];
    if (state.absent || context_.shards.trained_by(unit).empty()) continue;
    ++wanted;
    if (state.written == micro_batches_) continue;
    if (++missing <= named_max) names += (least ? ", " : "") + context_.model.units[unit].name;
    least = std::min(least.value_or(state.written), state.written);
  }
  if (!least) return ok();
  if (missing > named_max) names += " and " + std::to_string(missing - named_max) + " more";
  if (missing == wanted && missing > 1) names = "all " + std::to_string(missing) + " units";
  return Error::invalid_argument("Engine::step")
      .reason("gradients are missing: not every unit was reduced in every micro-batch")
      .object(names)
      .wanted(micro_batches_)
      .got(*least)
      .advice(
          "reduce them; or give begin_step() fewer StepOptions::micro_batches, or the units in "
          "StepOptions::units_without_gradient");
}

Result<void> GradientPipeline::abandon_step() {
  for (FlatState& flat : context_.flats) {
    if (flat.grad.is_of_update) continue;  // of the last step's update, which may still run
    const bool has_gradient = !untouched(flat) || flat.grad.in_place.held();
    flat.grad.reduction = {};
    flat.grad.written.clear();
    flat.grad.in_place.end();
    if (has_gradient) PENSTOCK_TRY(context_.discard_gradient(flat));
  }
  end_step();
  return ok();
}

void GradientPipeline::end_step() {
  for (FlatState& flat : context_.flats) flat.grad.closed_count = 0;
  for (UnitState& unit : units_) unit = {.absent = unit.absent};
}

}  // namespace penstock::zero
