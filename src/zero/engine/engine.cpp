#include "zero/engine/engine_state.hpp"

namespace penstock::zero {

void UnitLease::end() noexcept {
  if (engine_ != nullptr) std::exchange(engine_, nullptr)->state_->release(unit_);
}

Result<std::unique_ptr<Engine>> Engine::create(Options options) {
  const auto missing = [](const char* name) -> Result<std::unique_ptr<Engine>> {
    return Error::invalid_argument("Engine::create").object(name).reason("a required object is missing");
  };
  if (options.runtime == nullptr) return missing("runtime");
  if (options.device == nullptr) return missing("device");
  if (options.compute == nullptr) return missing("compute");
  if (options.communicator == nullptr) return missing("communicator");
  Communicator& communicator = *options.communicator;
  std::unique_ptr<State> state;
  const auto open = [&]() -> Result<void> {
    PENSTOCK_TRY(options.config.validate());
    PENSTOCK_TRY(options.model.validate());
    state = std::make_unique<State>(std::move(options));
    return state->open();
  };
  if (auto opened = open(); !opened) {
    communicator.abort(opened.error());  // peers that wait for this rank get the cause
    return opened.error();
  }
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;

Result<void> Engine::initialize(const Fill& fill) {
  return state_->initialize(fill);
}
Result<void> Engine::begin_step(const StepOptions& options) {
  return state_->begin_step(options);
}

Result<UnitLease> Engine::acquire(std::uint32_t unit, tiers::Stream& stream) {
  PENSTOCK_TRY_ASSIGN(auto parameters, state_->acquire(unit, stream));
  UnitLease lease;
  lease.engine_ = this;
  lease.unit_ = unit;
  lease.parameters_ = std::move(parameters);
  return lease;
}

Result<UnitGradients> Engine::gradients(std::uint32_t unit, tiers::Stream& stream) {
  PENSTOCK_TRY_ASSIGN(auto slots, state_->gradients(unit, stream));
  UnitGradients gradients;
  gradients.unit_ = unit;
  gradients.slots_ = std::move(slots);
  return gradients;
}

Result<void> Engine::reduce(UnitGradients gradients, tiers::Stream& stream) {
  return state_->reduce(gradients.unit_, stream);
}

Result<StepOutcome> Engine::step() {
  return state_->step();
}
Result<std::string> Engine::digest() {
  return state_->digest();
}
Engine::Status Engine::status() const {
  return state_->status();
}
const std::string& Engine::notes() const {
  return state_->notes;
}

}  // namespace penstock::zero
