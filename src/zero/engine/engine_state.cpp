#include "zero/engine/engine_state.hpp"

#include <algorithm>

namespace penstock::zero {

Engine::State::State(Options options)
    : shards(options.model, options.communicator->size()),
      options_(std::move(options)),
      runtime_(*options_.runtime),
      device_(*options_.device),
      communicator_(*options_.communicator),
      optimizer_({.runtime = options_.runtime,
                  .workers = options_.workers,
                  .parameter_dtype = options_.config.dtype,
                  .gradient_dtype = options_.config.grad_accum_dtype,
                  .format = options_.config.penstock.state_format,
                  .tiles_ahead = options_.plan.tiles_ahead,
                  .tiles_ahead_next_flats = options_.plan.tiles_ahead_next_flats,
                  .tile_stores_max = options_.config.penstock.tiles_in_flight,
                  .integrity = options_.config.penstock.integrity,
                  .shards_on_disk = options_.plan.shards_on_disk}),
      micro_batches_(options_.config.gradient_accumulation_steps) {}

Engine::State::~State() {
  // What is in flight writes into memory of ours. Where peers are gone it fails instead of finishing, and so
  // does what waits for room that a failed store holds; that store is for the next call of somebody's to hear of.
  const auto at_rest = [this] {
    return std::all_of(flats_.begin(), flats_.end(),
                       [](const FlatState& flat) { return flat.gather.done && flat.landing.done; });
  };
  bool rested = false;
  runtime_.wait_for_rest([&] { return (rested = at_rest()) || runtime_.store_failed(); });
  if (!rested) {
    (void)fail(Error(ErrorCode::failed_state, "Engine::~Engine").reason("the engine is gone"));
    runtime_.wait_for_rest(at_rest);
  }
  // A peer's stream may read this rank's memory still, when a collective was broken off.
  if (communication_) communicator_.retire(*communication_);
  // Not by blocking on a stream: it may wait for a peer's, which whoever drives the ranks must let run.
  for (auto* stream : {copy_in_.get(), communication_.get(), copy_out_.get()}) {
    auto event = device_.create_event();
    if (stream == nullptr || !event || !stream->record(**event)) continue;
    (void)runtime_.wait_for(**event);  // a device that failed has nothing in flight
  }
  residency_.reset();
  flats_.clear();
  for (const tiers::TensorId tensor : tensors_) runtime_.remove(tensor);
  if (!arena_.empty()) device_.release(arena_);
  if (pinned_) device_.unpin(runtime_.arena().bytes());
}

Result<void> Engine::State::open() {
  const auto take = [](auto& member, auto&& result) -> Result<void> {
    if (!result) return result.error();
    member = std::move(*result);
    return ok();
  };
  PENSTOCK_TRY(take(copy_in_, device_.create_stream()));
  PENSTOCK_TRY(take(copy_out_, device_.create_stream()));
  PENSTOCK_TRY(take(communication_, device_.create_stream()));
  PENSTOCK_TRY(take(compute_progress_, device_.create_event()));
  PENSTOCK_TRY(take(arena_, device_.allocate(options_.plan.device_budget)));
  device_budget_ = std::make_unique<tiers::MemoryBudget>(tiers::Tier::device, options_.plan.device_budget,
                                                         runtime_.ledger());
  residency_.emplace(shards, options_.config.dtype, *device_budget_,
                     unit_order(options_.model.units.size(), options_.config.gradient_accumulation_steps));
  hops_.emplace(HopContext{.runtime = runtime_,
                           .device = device_,
                           .communicator = communicator_,
                           .order = order_,
                           .landings = landing_order_,
                           .copy_in = *copy_in_,
                           .copy_out = *copy_out_,
                           .communication = *communication_,
                           .compute_progress = *compute_progress_});

  if (options_.config.pins_host_memory()) {
    const auto pinned = device_.pin(runtime_.arena().bytes());
    pinned_ = pinned.has_value();
    if (!pinned_) notes = "host memory is not pinned for the device: " + pinned.error().message();
  }

  flats_.resize(shards.flats().size());
  std::uint64_t tile_number = 0;
  for (std::uint32_t f = 0; f < flats_.size(); ++f) {
    FlatState& flat = flats_[f];
    flat.layout = &shards.flats()[f];
    for (auto* event :
         {&flat.copied, &flat.gathered_event, &flat.grad_ready, &flat.reduced, &flat.landed_event}) {
      PENSTOCK_TRY(take(*event, device_.create_event()));
    }
    PENSTOCK_TRY(add_tensors(f, tile_number));
  }
  unit_streams_.resize(options_.model.units.size(), nullptr);
  predict();
  return ok();
}

Result<void> Engine::State::add_tensors(std::uint32_t index, std::uint64_t& tile_number) {
  FlatState& flat = flats_[index];
  const FlatLayout& layout = *flat.layout;
  const MemoryPlan& plan = options_.plan;
  const Config& config = options_.config;
  const auto bytes = [&](DType dtype) { return size_of(dtype) * layout.shard.value(); };
  const auto add = [&](tiers::TensorId& id, tiers::TensorDescription description,
                       bool on_disk) -> Result<void> {
    auto added = runtime_.add(std::move(description), on_disk);
    if (!added) return added.error();
    tensors_.push_back(id = *added);
    return ok();
  };
  PENSTOCK_TRY(add(flat.shard,
                   {.name = layout.name + " parameter shard",
                    .purpose = tiers::Purpose::parameter_shard,
                    .size = bytes(config.dtype),
                    .write_behind = true,
                    .sealed_in_pass = config.penstock.integrity == Integrity::off},
                   plan.shards_on_disk));
  PENSTOCK_TRY(add(flat.gradient,
                   {.name = layout.name + " gradient shard",
                    .purpose = tiers::Purpose::gradient_shard,
                    .size = bytes(config.grad_accum_dtype),
                    .sealed_in_pass = config.penstock.integrity == Integrity::off},
                   plan.gradients_on_disk));
  PENSTOCK_TRY(add(flat.landing_tensor,
                   {.name = layout.name + " incoming gradient",
                    .purpose = tiers::Purpose::scratch,
                    .size = bytes(config.dtype),
                    .transient = true},
                   false));
  for (const TileRange& range : cut_into_tiles(layout, config.penstock.tile())) {
    TileState tile{.range = range,
                   .first_element = (std::uint64_t{index} << 40) +
                                    (layout.shard * communicator_.rank() + range.begin).value(),
                   .on_disk = !plan.in_host(tile_number)};
    ++tile_number;
    PENSTOCK_TRY(add(tile.tensor,
                     {.name = layout.name + " optimizer tile " + std::to_string(flat.tiles.size()),
                      .purpose = tiers::Purpose::optimizer_tile,
                      .size = *cpu_adam::tile_bytes(config.penstock.state_format, range.count),
                      .block = *cpu_adam::block_bytes(config.penstock.state_format, cpu_adam::block_elements),
                      .write_behind = true,
                      .retain = !tile.on_disk,
                      .sealed_in_pass = true},
                     tile.on_disk));
    flat.tiles.push_back(tile);
  }
  return ok();
}

/// Puts the plan's figures beside the actual ones.
void Engine::State::predict() {
  using tiers::Purpose;
  using tiers::Tier;
  tiers::Ledger& ledger = runtime_.ledger();
  const MemoryPlan& plan = options_.plan;
  ledger.predict(Tier::device, Purpose::gathered_flat, plan.device_gathered);
  ledger.predict(Tier::device, Purpose::full_gradient, plan.device_gradients);
  ledger.predict(Tier::host, Purpose::scratch, plan.host_landing);
  ledger.predict(Tier::host, Purpose::parameter_shard, plan.host_shards);
  ledger.predict(Tier::host, Purpose::gradient_shard, plan.host_gradients);
  ledger.predict(Tier::host, Purpose::optimizer_tile, plan.host_tiles);
  ledger.predict(Tier::nvme, Purpose::parameter_shard, plan.disk_shards);
  ledger.predict(Tier::nvme, Purpose::gradient_shard, plan.disk_gradients);
  ledger.predict(Tier::nvme, Purpose::optimizer_tile, plan.disk_tiles);
}

Result<void> Engine::State::usable(const char* operation) const {
  if (!failure_) return ok();
  return Error(ErrorCode::failed_state, operation)
      .reason("the engine failed earlier and cannot go on")
      .note("cause   " + failure_->message());
}

Engine::Status Engine::State::status() const {
  if (failure_) return Status::failed;
  return verdict_ ? Status::step_incomplete : Status::ready;
}

Result<void> Engine::State::step_complete(const char* operation) const {
  if (!verdict_) return ok();
  return Error(ErrorCode::failed_state, operation)
      .reason("the last step is incomplete")
      .advice("call step() again until it succeeds");
}

/// No gradient of a step has been reduced, or is being written.
Result<void> Engine::State::between_steps(const char* operation) const {
  for (std::uint32_t flat = 0; flat < flats_.size(); ++flat) {
    if (flats_[flat].landed == 0 && !residency_->is_open(flat)) continue;
    return Error(ErrorCode::failed_state, operation)
        .reason("a step is under way")
        .object(flats_[flat].layout->name)
        .advice("reduce every unit in every micro-batch, and call step()");
  }
  return ok();
}

/// A failed write-behind can be tried again, unless its swap file is out of use.
Result<void> Engine::State::heard(Result<void> of_stores) {
  if (of_stores) return of_stores;
  const ErrorCode code = of_stores.error().code();
  const bool for_good = code == ErrorCode::deadline_exceeded || code == ErrorCode::failed_state;
  return for_good ? fail(of_stores.error()) : of_stores;
}

/// Nothing but step() and initialize() goes on from anything else.
Result<void> Engine::State::ready(const char* operation) const {
  PENSTOCK_TRY(usable(operation));
  if (!initialized_) {
    return Error::invalid_argument(operation)
        .reason("the parameters have no values yet")
        .advice("call initialize() until it succeeds");
  }
  return step_complete(operation);
}

Result<void> Engine::State::fail(Error error) {
  if (!failure_) failure_ = error;
  communicator_.abort(error);
  order_.break_off(error);
  return error;
}

Result<void> Engine::State::check_unit(const char* operation, std::uint32_t unit) const {
  if (unit < options_.model.units.size()) return ok();
  return Error::invalid_argument(operation).object("unit").wanted(options_.model.units.size()).got(unit);
}

Result<void> Engine::State::initialize(const Fill& fill) {
  PENSTOCK_TRY(usable("Engine::initialize"));
  PENSTOCK_TRY(step_complete("Engine::initialize"));
  PENSTOCK_TRY(between_steps("Engine::initialize"));
  initialized_ = false;
  PENSTOCK_TRY(residency_->drop_all(*this));
  PENSTOCK_TRY(optimizer_.initialize(
      flats_, communicator_.rank(), [&](const FlatLayout& flat, ElementCount first, std::span<float> values) {
        const ElementCount last = first + ElementCount(values.size());
        for (const FlatSlot& slot : flat.slots) {
          const ElementCount begin = std::max(first, slot.begin),
                             end = std::min(last, slot.begin + slot.count);
          if (begin >= end) continue;
          fill(slot.parameter, (begin - slot.begin).value(),
               values.subspan((begin - first).value(), (end - begin).value()));
        }
      }));
  runtime_.ledger().predict_traffic(tiers::Purpose::optimizer_tile, {}, options_.plan.tile_writes);
  runtime_.ledger().predict_traffic(tiers::Purpose::parameter_shard, {}, options_.plan.shard_writes);
  current_step = 0;
  initialized_ = true;
  return ok();
}

Result<void> Engine::State::begin_step(const StepOptions& step) {
  PENSTOCK_TRY(ready("Engine::begin_step"));
  PENSTOCK_TRY(between_steps("Engine::begin_step"));
  if (step.micro_batches == 0) {
    return Error::invalid_argument("Engine::begin_step").object("micro_batches").wanted("1 or more").got(0u);
  }
  micro_batches_ = step.micro_batches;
  residency_->expect(unit_order(options_.model.units.size(), micro_batches_));
  learning_rate_ = step.learning_rate;
  return ok();
}

}  // namespace penstock::zero
