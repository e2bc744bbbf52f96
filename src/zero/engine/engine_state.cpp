#include "zero/engine/engine_state.hpp"

#include "zero/config/device_update.hpp"
#include "zero/layout/device_plan.hpp"
#include "zero/layout/padded.hpp"

#include <utility>

namespace penstock::zero {

namespace {

/// What is no arithmetic of the trainer or its device.
TimePoint waited(const swap::Runtime& runtime) {
  using enum swap::StallCause;
  TimePoint sum{};
  for (const swap::StallCause cause : {loads, stores, parameters, update, checkpoints})
    sum += runtime.stall_time(cause);
  return sum;
}

}  // namespace

EngineState::EngineState(Options options)
    : options_(std::move(options)),
      timed_(swap::RuntimeInternals(*options_.runtime).timeline(), *options_.device, *options_.compute,
             options_.adam),
      context_(*options_.runtime, timed_.device(), timed_.compute(), *options_.communicator,
               *options_.workers, options_.config, options_.model, options_.device_deadline),
      gathers_(context_),
      gradients_(context_),
      caller_gradients_(context_, timed_.compute()),
      device_update_(context_, timed_.adam()),
      custom_update_(options_.update, options_.model, options_.communicator->rank()),
      muon_update_(options_.model, options_.communicator->rank()),
      optimizer_({.runtime = options_.runtime,
                  .device = &device_update_,
                  .custom = &custom_update_,
                  .muon = &muon_update_,
                  .workers = options_.workers,
                  .names = context_.names(),
                  .parameter_dtype = options_.config.dtype,
                  .gradient_dtype = options_.config.grad_accum_dtype,
                  .layout = tile_layout(options_.config, FlatLayout{}),
                  .matrix_layout = tile_layout(options_.config),
                  .tiles_ahead = options_.plan.tiles_ahead,
                  .tiles_ahead_next_flats = options_.plan.tiles_ahead_next_flats,
                  .tile_stores_max = options_.config.penstock.tiles_in_flight,
                  .integrity = options_.config.penstock.integrity,
                  .checks_finite = options_.config.skips_non_finite_gradients(),
                  .shards_on_disk = options_.plan.shards_on_disk}),
      update_(context_, optimizer_, device_update_, options_.plan.update),
      step_(context_, update_, options_.plan),
      shard_reads_(options_.plan, options_.model.units.size()),
      clock_(
          Clock::steady(), [this] { return waited(context_.runtime); }, context_.internals.timeline()),
      wear_(options_.config.penstock),
      communicator_scratch_(*options_.device, options_.runtime->ledger()) {
  context_.shares_memory = options_.plan.shares_memory;
  context_.tracks = timed_.tracks();
}

EngineState::~EngineState() {
  // Operations in flight write into the engine's memory, so wait for them. They fail instead of finishing if peers are
  // gone, or if they wait for memory that is held by a tensor whose store failed. The update ends before its next tile.
  const swap::RuntimeInternals& internals = context_.internals;
  const auto idle = [this] { return moves_are_idle() && context_.update.done; };
  update_.stop();
  if (commits_) commits_->give_up();
  bool finished = false;
  // Gathers wait for ever for an update that has stopped.
  const auto update_stopped = [this] { return context_.update.error || context_.update_stopped; };
  internals.wait_ignoring_stores(
      [&] { return (finished = idle()) || internals.store_failed() || update_stopped(); });
  if (!finished) {
    (void)context_.fail(Error(ErrorCode::failed_state, "Engine::~Engine").reason("the engine was destroyed"));
    internals.wait_ignoring_stores(idle);
  }
  // After an aborted collective a peer's stream may still read this rank's memory.
  if (context_.communication) context_.communicator.retire(*context_.communication);
  // A stream whose end cannot be recorded has failed, and runs nothing any more. Does not block on a stream: it may
  // wait for a peer's stream, which an idle handler must be able to run.
  if (!context_.device_hangs()) (void)context_.finish_streams();
  const bool hangs = context_.device_hangs();
  if (hangs) context_.abandon_device();
  context_.results.end();
  residency_.reset();
  checkpoints_.reset();
  context_.flats.clear();
  internals.abandon_memory(std::exchange(parking_.given_back, {}));
  end_parking();
  for (const tiers::TensorId tensor : tensors_) (void)internals.remove(tensor);
  if (hangs) return;
  context_.release_device_memory();
  if (pinned_) internals.unpin(*options_.device);
  if (joined_) internals.remove_user(options_.engine_number);
}

Result<void> EngineState::open() {
  const Config& config = options_.config;
  const std::size_t units = options_.model.units.size();
  PENSTOCK_TRY(join_runtime());
  PENSTOCK_TRY(context_.open({.flats = options_.plan.device_flats(),
                              .parameters = options_.plan.device_of_parameters(),
                              .gradients = options_.plan.device_of_gradients(),
                              .optimizer = options_.plan.device_of_optimizer()}));
  gradients_.begin_step(config.gradient_accumulation_steps, {});
  units_to_reduce_ = gradients_.units_to_reduce();
  device_budget_ = std::make_unique<tiers::MemoryBudget>(tiers::Tier::device, options_.plan.device_flats(),
                                                         context_.runtime.ledger());
  leases_ =
      std::make_unique<tiers::MemoryBudget>(tiers::Tier::host, options_.plan.host_leases, leases_ledger_,
                                            extent_alignment, tiers::MemoryBudget::Ranges::counted);
  residency_.emplace(
      context_.shards, config.dtype, in_place_of(options_.plan, config),
      limits_of(options_.plan, config, context_.shards),
      FlatResidency::Budgets{.gathered = options_.plan.shares_memory ? *leases_ : *device_budget_,
                             .gradients = *device_budget_},
      unit_order(units, config.gradient_accumulation_steps));
  if (config.pins_host_memory()) {
    const auto pinned = context_.internals.pin(*options_.device);
    pinned_ = pinned.has_value();
    if (!pinned_) add_note("host memory is not pinned for the device: " + pinned.error().message());
  }
  PENSTOCK_TRY(open_memory());
  if (options_.directory != nullptr) {
    commits_.emplace(context_, *options_.directory, options_.plan, options_.engine_number);
    PENSTOCK_TRY(commits_->open());
  }
  add_note(timed_.note());
  if (asks_device_to_update(config) && !options_.plan.device_squares)
    add_note("the CPU updates all tiles: the rank has no other device, which could keep or update some");
  return update_.open();
}

void EngineState::add_note(std::string note) {
  if (note.empty()) return;
  if (!notes.empty()) notes += "; ";
  notes += note;
}

Result<EngineState::Call> EngineState::enter(const char* operation) {
  if (!in_call_.exchange(true)) {
    Call call(&in_call_);
    if (commits_) commits_->remove_failed();
    update_.resume();
    return call;
  }
  return Error(ErrorCode::failed_state, operation)
      .reason("another call of this engine has not returned")
      .advice("call an engine from one thread, and not from a Fill, StateSink or StateSource");
}

bool EngineState::moves_are_idle() const {
  return gathers_.idle() && gradients_.idle() && (!checkpoints_ || checkpoints_->idle());
}

Result<void> EngineState::finish_moves(const Result<void>& updated) {
  bool idle = false;
  PENSTOCK_TRY(context_.fail_unless_retryable(context_.internals.wait_until([&] {
    const bool has_stopped = context_.update.done && (context_.update.error || context_.update_stopped);
    return (idle = moves_are_idle()) || has_stopped;
  })));
  if (idle) return ok();
  PENSTOCK_TRY(context_.check_update());
  return updated;
}

Engine::Status EngineState::status() const {
  if (context_.failure) return Status::failed;
  if (context_.interruption) return Status::interrupted;
  return Status::ready;
}

Result<void> EngineState::restore_loss_scaler(const LossScaler::State& state) {
  PENSTOCK_TRY(check_not_failed("Engine::restore_loss_scaler"));
  PENSTOCK_TRY(between_steps("Engine::restore_loss_scaler"));
  return step_.loss_scaler().restore(state);
}

Result<void> EngineState::set_groups(std::vector<OptimizerGroup> groups) {
  constexpr const char* operation = "Engine::set_groups";
  PENSTOCK_TRY(check_not_failed(operation));
  PENSTOCK_TRY(check_not_updating(operation));
  if (groups.size() != step_.groups().size()) {
    return Error::invalid_argument(operation)
        .object("groups")
        .wanted(std::to_string(step_.groups().size()) + ", the number of groups in the layout")
        .got(std::to_string(groups.size()));
  }
  const auto check_kept = [&](std::size_t group, bool OptimizerGroup::*member, const char* name,
                              const char* reason, const char* advice) -> Result<void> {
    const bool got = groups[group].*member;
    if (got == step_.groups()[group].*member) return ok();
    return Error::invalid_argument(operation)
        .object("groups[" + std::to_string(group) + "]." + name)
        .reason(std::string("it cannot change while the engine exists: ") + reason)
        .wanted(got ? "false" : "true")
        .got(got ? "true" : "false")
        .advice(advice);
  };
  for (std::size_t i = 0; i < groups.size(); ++i) {
    PENSTOCK_TRY(
        check_kept(i, &OptimizerGroup::frozen, "frozen", "frozen parameters have no optimizer states",
                   "create another engine; or, to pause a group, set its learning_rate_factor to 0"));
    PENSTOCK_TRY(check_kept(i, &OptimizerGroup::use_muon, "use_muon", "Muon and AdamW keep different states",
                            "create another engine"));
  }
  PENSTOCK_TRY(validate(operation, groups));
  step_.set_groups(std::move(groups));
  return ok();
}

Result<std::vector<DeviceTensor>> EngineState::acquire(std::uint32_t unit, tiers::Stream& stream) {
  PENSTOCK_TRY(ready("Engine::acquire"));
  PENSTOCK_TRY(check_here("Engine::acquire", ParkKinds::parameters));
  PENSTOCK_TRY(check_unit("Engine::acquire", unit));
  PENSTOCK_TRY(check_stream("Engine::acquire", stream));
  PENSTOCK_TRY(check_before_update("Engine::acquire", unit));
  PENSTOCK_TRY(context_.fail_unless_retryable(context_.runtime.check_stores()));
  clock_.acquire();
  start_commit();
  PENSTOCK_TRY(update_reduced());
  read_between_updates();
  shard_reads_.acquire(unit);
  PENSTOCK_TRY(residency_->acquire(unit, *this));
  auto views = gathers_.views(unit, stream);
  if (!views) return views;
  residency_->lease(unit);
  begin_on_stream(stream, "parameters of ", unit);
  return views;
}

void EngineState::begin_on_stream(tiers::Stream& stream, const char* use, std::uint32_t unit) {
  if (context_.tracks != nullptr)
    context_.tracks->begin(stream.handle(), use + options_.model.units[unit].name);
}
void EngineState::end_on_stream(tiers::Stream& stream, const char* use, std::uint32_t unit) {
  if (context_.tracks != nullptr)
    context_.tracks->end(stream.handle(), use + options_.model.units[unit].name);
}

void EngineState::release(std::uint32_t unit, tiers::Stream& stream) noexcept {
  end_on_stream(stream, "parameters of ", unit);
  residency_->release(unit);
  (void)gathers_.end_use(unit, stream);  // an error fails the engine, and the next call returns it
}

Result<std::vector<GradientSlot>> EngineState::gradients(const char* operation, std::uint32_t unit,
                                                         tiers::Stream& stream) {
  PENSTOCK_TRY(ready(operation));
  PENSTOCK_TRY(check_here(operation, ParkKinds::parameters | ParkKinds::gradients));
  PENSTOCK_TRY(check_unit(operation, unit));
  PENSTOCK_TRY(check_stream(operation, stream));
  PENSTOCK_TRY(gradients_.check_expected(operation, unit));
  PENSTOCK_TRY(check_wear(operation));
  clock_.gradients();
  PENSTOCK_TRY(finish_last_update());  // it reads the gradients of the last step, from the same memory
  start_commit();
  PENSTOCK_TRY(update_reduced());
  if (gradients_.is_last_micro_batch(unit)) update_.read_ahead();
  gradient_stream_ = &stream;
  PENSTOCK_TRY(residency_->open_gradients(unit, *this));
  auto slots = gradients_.slots(operation, unit, stream);
  if (slots) begin_on_stream(stream, "gradients of ", unit);
  return slots;
}

Result<void> EngineState::reduce(std::uint32_t unit, tiers::Stream& stream) {
  PENSTOCK_TRY(ready("Engine::reduce"));
  PENSTOCK_TRY(check_here("Engine::reduce", ParkKinds::parameters | ParkKinds::gradients));
  PENSTOCK_TRY(check_unit("Engine::reduce", unit));
  PENSTOCK_TRY(check_stream("Engine::reduce", stream));
  if (!gradients_.is_open(unit)) {
    return Error::invalid_argument("Engine::reduce")
        .reason("the unit's gradient was already reduced, or its step was abandoned")
        .object(options_.model.units[unit].name)
        .advice("call gradients() for each micro-batch, and pass its result once");
  }
  end_on_stream(stream, "gradients of ", unit);
  PENSTOCK_TRY(gradients_.close(unit, stream));
  for (const std::uint32_t flat : context_.shards.trained_by(unit)) {
    if (!residency_->close_gradient(flat)) continue;
    PENSTOCK_TRY(gradients_.close_flat(context_.flats[flat], stream));
  }
  clock_.reduced(gradients_.closed(unit), units_to_reduce_);
  PENSTOCK_TRY(residency_->reduce_buckets(*this));
  return update_reduced();
}

Result<void> EngineState::reduce_copies(std::uint32_t unit, std::span<const GradientSource> gradients,
                                        tiers::Stream& stream) {
  constexpr const char* operation = "Engine::reduce";
  PENSTOCK_TRY(ready(operation));
  PENSTOCK_TRY(check_here(operation, ParkKinds::parameters | ParkKinds::gradients));
  PENSTOCK_TRY(check_unit(operation, unit));
  PENSTOCK_TRY(check_stream(operation, stream));
  PENSTOCK_TRY(caller_gradients_.prepare(unit, gradients));
  PENSTOCK_TRY_ASSIGN(const auto slots, this->gradients(operation, unit, stream));
  PENSTOCK_TRY(caller_gradients_.copy(gradients, slots, stream));
  return reduce(unit, stream);
}

Result<DeviceSpan> EngineState::checkpoint(std::uint32_t checkpoint, CheckpointUse use,
                                           tiers::Stream& stream) {
  constexpr const char* operation = "Engine::checkpoint";
  PENSTOCK_TRY(ready(operation));
  PENSTOCK_TRY(check_here(operation, ParkKinds::parameters));
  PENSTOCK_TRY(check_stream(operation, stream));
  const std::uint32_t count = options_.model.checkpoints.count;
  if (checkpoint >= count) {
    return Error::invalid_argument(operation)
        .object("checkpoint")
        .wanted(count == 0 ? "ModelLayout::checkpoints, which has none" : "below " + std::to_string(count))
        .got(checkpoint);
  }
  if (use > CheckpointUse::last_read) {
    return Error::invalid_argument(operation)
        .object("use")
        .wanted("write, read or last_read")
        .got(static_cast<unsigned>(use));
  }
  return checkpoints_->lease(checkpoint, use, stream);
}

void EngineState::release_checkpoint(std::uint32_t checkpoint) noexcept {
  (void)checkpoints_->release(checkpoint);  // an error fails the engine, and the next call returns it
}

Result<void> EngineState::finish_update() {
  PENSTOCK_TRY(check_not_failed("Engine::finish_update"));
  return context_.finish_update();
}

Result<void> EngineState::gather(std::uint32_t flat) {
  predict_gather(context_.flats[flat]);
  return gathers_.gather(context_.flats[flat], residency_->gathered(flat));
}
Result<void> EngineState::drop(std::uint32_t flat) {
  return gathers_.finish_use(context_.flats[flat], residency_->gathered(flat));
}
Result<void> EngineState::open_gradient(std::uint32_t flat) {
  return gradients_.open(context_.flats[flat], residency_->gradient(flat), *gradient_stream_);
}
Result<void> EngineState::reduce(std::span<const std::uint32_t> flats) {
  gradients_.reduce(flats);
  if (!updates_in_backward()) return ok();
  for (const std::uint32_t flat : flats) {
    if (gradients_.is_complete(flat)) reduced_.push_back(flat);
  }
  return ok();
}
Result<void> EngineState::finish_gradient(std::uint32_t flat) {
  return gradients_.finish_use(context_.flats[flat], residency_->gradient(flat));
}

}  // namespace penstock::zero
