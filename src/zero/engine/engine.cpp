#include "base/duration_text.hpp"
#include "zero/engine/engine_state.hpp"
#include "zero/layout/plan_fingerprint.hpp"

namespace penstock::zero {

void UnitLease::end() noexcept {
  if (const auto engine = std::exchange(engine_, {}).lock()) engine->release(unit_, *stream_);
}

void CheckpointLease::end() noexcept {
  bytes_ = {};
  if (const auto engine = std::exchange(engine_, {}).lock()) engine->release_checkpoint(checkpoint_);
}

namespace {

/// Checks that plan and runtime are those of the other options.
Result<void> check_plan(const Engine::Options& options) {
  const std::uint32_t ranks = options.communicator->size();
  const auto refused = [](const char* object) {
    return Error::invalid_argument("Engine::create").object(object);
  };
  if (options.plan.fingerprint == 0) {
    return refused("plan")
        .wanted("the result of plan_memory()")
        .got("a default MemoryPlan")
        .advice(
            "call plan_memory() for this configuration and layout, and create the runtime from its plan too");
  }
  if (options.plan.fingerprint != plan_fingerprint(options.config, options.model, ranks)) {
    return refused("plan")
        .wanted("the plan of this configuration and layout for " + std::to_string(ranks) + " ranks")
        .got("the plan of another configuration, layout or number of ranks")
        .advice("call plan_memory() again after changing the configuration or the layout");
  }
  if (options.plan.shares_memory && options.device->memory() != tiers::DeviceMemory::host) {
    return refused("plan")
        .wanted("a plan for a device with memory of its own")
        .got("one for a device whose memory is host memory")
        .advice("pass the device's memory() to plan_memory()");
  }
  const ByteCount memory = options.runtime->host_memory().size();
  if (memory < options.plan.host_budget) {
    return refused("runtime")
        .reason("the runtime has less host memory than the plan")
        .wanted(options.plan.host_budget)
        .got(memory)
        .advice("create the runtime with the options that the plan's runtime_options() returns");
  }
  if (options.plan.update.device_slots == 0 || options.adam != nullptr) return ok();
  return Error::unsupported("Engine::create")
      .object("adam")
      .reason("the plan has tiles that the device updates, and the accelerator has no optimizer")
      .advice(
          "pass a DeviceAdam; or set offload_optimizer.device to cpu or nvme, its ratio to 1, "
          "penstock.update_split to ratio, and penstock.device_states to 0");
}

/// Checks that a durable run has a directory.
Result<void> check_directory(const Engine::Options& options) {
  if (options.config.is_durable() == (options.directory != nullptr)) return ok();
  return Error::invalid_argument("Engine::create")
      .object("directory")
      .reason("a directory and penstock.durable_directory belong together")
      .wanted(options.config.is_durable() ? "a directory" : "none")
      .advice("create the engine with a zero::Rank, which opens it");
}

/// Checks that there is an update function if the configuration says so.
Result<void> check_update_function(const Engine::Options& options) {
  const cpu_adam::Optimizer type = options.config.optimizer.type;
  const bool is_given = options.update != nullptr;
  if (is_given == cpu_adam::is_custom(type)) return ok();
  return Error::invalid_config("Engine::create")
      .object("optimizer.type")
      .reason(is_given ? "an update function is given, and the optimizer has a formula of its own"
                       : "the optimizer is a function of the trainer, and none is given")
      .wanted(is_given ? "Custom" : "Rank::Options::update or Engine::Options::update")
      .got(is_given ? std::string(to_string(type)) : "an empty std::function")
      .advice(is_given
                  ? "set optimizer.type to \"Custom\" and optimizer.params.moments to the number of moments "
                    "that the function keeps, or leave out the function"
                  : "pass the function, or set optimizer.type to AdamW, Adam, Lion, Adagrad or Muon");
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(Options options) {
  const auto missing = [](const char* name) -> Result<std::unique_ptr<Engine>> {
    return Error::invalid_argument("Engine::create").object(name).reason("a required object is missing");
  };
  if (options.runtime == nullptr) return missing("runtime");
  if (options.device == nullptr) return missing("device");
  if (options.compute == nullptr) return missing("compute");
  if (options.communicator == nullptr) return missing("communicator");
  if (options.workers == nullptr) return missing("workers");
  if (options.device_deadline <= TimePoint::zero()) {
    return Error::invalid_argument("Engine::create")
        .object("device_deadline")
        .wanted("more than 0")
        .got(duration_text(options.device_deadline));
  }
  Communicator& communicator = *options.communicator;
  std::shared_ptr<EngineState> state;
  const auto open = [&]() -> Result<void> {
    PENSTOCK_TRY(options.config.validate());
    PENSTOCK_TRY(check_directory(options));
    PENSTOCK_TRY(check_update_function(options));
    if (options.config.optimizer.type == cpu_adam::Optimizer::muon)
      PENSTOCK_TRY(cpu_adam::MatrixProduct::instance());
    PENSTOCK_TRY(options.model.validate());
    PENSTOCK_TRY(check_plan(options));
    state = std::make_shared<EngineState>(std::move(options));
    return state->open();
  };
  if (auto opened = open(); !opened) {
    communicator.abort(opened.error());  // peers that wait for this rank get the cause
    return opened.error();
  }
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

Engine::Engine(std::shared_ptr<EngineState> state) : state_(std::move(state)) {}
Engine::~Engine() = default;

Result<void> Engine::initialize(const Fill& fill) {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::initialize"));
  return state_->initialize(fill);
}
Result<void> Engine::read_states(const StateSink& sink) {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::read_states"));
  return state_->read_states(sink);
}
Result<void> Engine::restore(std::uint64_t step, const StateSource& source) {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::restore"));
  return state_->restore(step, source);
}
std::uint64_t Engine::completed_steps() const {
  return state_->completed_steps();
}
StepTimes Engine::step_times() const {
  return state_->step_times();
}
std::uint64_t Engine::skipped_steps() const {
  return state_->skipped_steps();
}
const LossScaler& Engine::loss_scaler() const {
  return state_->loss_scaler();
}
Result<void> Engine::restore_loss_scaler(const LossScaler::State& state) {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::restore_loss_scaler"));
  return state_->restore_loss_scaler(state);
}
const std::vector<OptimizerGroup>& Engine::groups() const {
  return state_->groups();
}
Result<void> Engine::set_groups(std::vector<OptimizerGroup> groups) {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::set_groups"));
  return state_->set_groups(std::move(groups));
}
Result<void> Engine::begin_step(const StepOptions& options) {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::begin_step"));
  return state_->begin_step(options);
}

Result<UnitLease> Engine::acquire(std::uint32_t unit, tiers::Stream& stream) {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::acquire"));
  PENSTOCK_TRY_ASSIGN(auto parameters, state_->acquire(unit, stream));
  UnitLease lease;
  lease.engine_ = state_;
  lease.unit_ = unit;
  lease.stream_ = &stream;
  lease.parameters_ = std::move(parameters);
  return lease;
}

Result<CheckpointLease> Engine::checkpoint(std::uint32_t checkpoint, CheckpointUse use,
                                           tiers::Stream& stream) {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::checkpoint"));
  CheckpointLease lease;
  PENSTOCK_TRY_ASSIGN(lease.bytes_, state_->checkpoint(checkpoint, use, stream));
  lease.engine_ = state_;
  lease.checkpoint_ = checkpoint;
  return lease;
}

Result<UnitGradients> Engine::gradients(std::uint32_t unit, tiers::Stream& stream) {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::gradients"));
  PENSTOCK_TRY_ASSIGN(auto slots, state_->gradients("Engine::gradients", unit, stream));
  UnitGradients gradients;
  gradients.engine_ = state_;
  gradients.unit_ = unit;
  gradients.slots_ = std::move(slots);
  return gradients;
}

Result<void> Engine::reduce(UnitGradients gradients, tiers::Stream& stream) {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::reduce"));
  const auto engine = gradients.engine_.lock();
  if (engine != state_) {
    return Error::invalid_argument("Engine::reduce")
        .object("gradients")
        .wanted("what gradients() of this engine returned, passed on by std::move")
        .got(engine == nullptr ? "an empty or moved-from object" : "gradients of another engine");
  }
  return state_->reduce(gradients.unit_, stream);
}

Result<void> Engine::reduce(std::uint32_t unit, std::span<const GradientSource> gradients,
                            tiers::Stream& stream) {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::reduce"));
  return state_->reduce_copies(unit, gradients, stream);
}

Result<void> Engine::finish_update() {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::finish_update"));
  return state_->finish_update();
}

Result<StepOutcome> Engine::step() {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::step"));
  return state_->step();
}
Result<void> Engine::abandon_step(tiers::Stream& stream, std::string cause) {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::abandon_step"));
  return state_->abandon_step(stream, std::move(cause));
}
Result<std::string> Engine::digest() {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::digest"));
  return state_->digest();
}
Result<ParkReport> Engine::park(tiers::Tier to, ParkKinds kinds,
                                const std::vector<std::filesystem::path>& directories) {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::park"));
  return state_->park(to, kinds, directories);
}
Result<ParkReport> Engine::unpark() {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::unpark"));
  return state_->unpark();
}
Result<CommitReport> Engine::commit(std::span<const std::byte> client) {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::commit"));
  return state_->commit(client);
}
Result<void> Engine::begin_commit(std::span<const std::byte> client) {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::begin_commit"));
  return state_->begin_commit(client);
}
Result<CommitReport> Engine::finish_commit() {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::finish_commit"));
  return state_->finish_commit();
}
Result<SavedCheckpoint> Engine::save_checkpoint(const std::filesystem::path& directory,
                                                const SaveOptions& options) {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::save_checkpoint"));
  return state_->save_checkpoint(directory, options);
}
Result<Resumed> Engine::load_checkpoint(const std::filesystem::path& directory) {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::load_checkpoint"));
  return state_->load_checkpoint(directory);
}
Result<std::optional<Resumed>> Engine::resume() {
  PENSTOCK_TRY_ASSIGN(const auto call, state_->enter("Engine::resume"));
  return state_->resume();
}
ParkKinds Engine::parked() const {
  return state_->parked();
}
Engine::Status Engine::status() const {
  return state_->status();
}
const std::string& Engine::notes() const {
  return state_->notes;
}

}  // namespace penstock::zero
