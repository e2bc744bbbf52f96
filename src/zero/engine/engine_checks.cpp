// Whether a call of the engine is allowed now, and its arguments are usable. Nothing changes here.

#include "zero/engine/engine_state.hpp"

#include "base/number_text.hpp"

#include <cmath>

namespace penstock::zero {

Result<void> EngineState::check_not_failed(const char* operation) const {
  if (!context_.failure) return ok();
  return Error(ErrorCode::failed_state, operation)
      .reason("the engine failed earlier and cannot continue")
      .note("cause   " + context_.failure->message());
}

Result<void> EngineState::check_not_interrupted(const char* operation) const {
  if (!context_.interruption) return ok();
  return Error(ErrorCode::interrupted, operation)
      .reason("a rank has abandoned the step")
      .note("cause   " + context_.interruption->message())
      .advice("end every UnitLease and CheckpointLease, call abandon_step(), and begin the next step");
}

/// Checks that no gradient of a step was reduced or is being written.
Result<void> EngineState::between_steps(const char* operation) const {
  for (std::uint32_t f = 0; f < context_.flats.size(); ++f) {
    const FlatState& flat = context_.flats[f];
    if (gradients_.untouched(flat) && !residency_->is_open(f)) continue;
    return Error(ErrorCode::failed_state, operation)
        .reason("a step is in progress, in which a gradient was asked for or reduced")
        .object(flat.layout->name)
        .advice(std::string("reduce every unit in every micro-batch and call step()") +
                (update_.has_begun() ? "" : ", or call abandon_step()"));
  }
  return ok();
}

Result<void> EngineState::check_not_updating(const char* operation) const {
  if (!update_.has_begun()) return ok();
  return Error(ErrorCode::failed_state, operation)
      .reason("penstock.update_in_backward has begun to update parameters in this step")
      .advice(
          "reduce every unit in every micro-batch and call step() first; where that is impossible, destroy "
          "the engine, and continue from the last commit or checkpoint");
}

/// With penstock.update_in_backward a unit has no defined parameters from its last gradient to step().
Result<void> EngineState::check_before_update(const char* operation, std::uint32_t unit) const {
  if (!updates_in_backward()) return ok();
  for (const std::uint32_t flat : context_.shards.trained_by(unit)) {
    if (!gradients_.is_complete(flat)) continue;
    return Error(ErrorCode::failed_state, operation)
        .reason(
            "its last gradient of this step was reduced, after which penstock.update_in_backward updates "
            "it")
        .object(options_.model.units[unit].name)
        .advice("use the unit before reduce(), or after step(); or leave the key out");
  }
  return ok();
}

Result<void> EngineState::check_restorable(const char* operation) const {
  PENSTOCK_TRY(check_not_failed(operation));
  PENSTOCK_TRY(check_not_interrupted(operation));
  PENSTOCK_TRY(check_here(operation, ParkKinds::all));
  PENSTOCK_TRY(check_no_commit(operation));
  PENSTOCK_TRY(between_steps(operation));
  return residency_->check_no_leases(operation);
}

/// The check of every call of a step.
Result<void> EngineState::ready(const char* operation) const {
  PENSTOCK_TRY(check_not_failed(operation));
  PENSTOCK_TRY(check_not_interrupted(operation));
  if (!initialized_) {
    return Error(ErrorCode::failed_state, operation)
        .reason("the parameters have no values yet")
        .advice("call initialize(), restore(), resume() or load_checkpoint() until it succeeds");
  }
  return ok();
}

Result<void> EngineState::check_unit(const char* operation, std::uint32_t unit) const {
  if (unit < options_.model.units.size()) return ok();
  return Error::invalid_argument(operation)
      .object("unit")
      .wanted("below " + std::to_string(options_.model.units.size()))
      .got(unit);
}

Result<void> EngineState::check_stream(const char* operation, const tiers::Stream& stream) const {
  if (options_.device->owns_stream(stream)) return ok();
  return Error::invalid_argument(operation)
      .object("stream")
      .wanted("a stream of the engine's device, " + options_.device->name())
      .advice(
          "create it with create_stream() of Rank::device(), or wrap_cuda_stream() with the device's "
          "ordinal");
}

Result<void> EngineState::check_step(const StepOptions& step) const {
  if (step.micro_batches == 0u) {
    return Error::invalid_argument("Engine::begin_step").object("micro_batches").wanted("at least 1").got(0u);
  }
  if (const double rate = step.learning_rate.value_or(0);
      !std::isfinite(static_cast<float>(rate)) || rate < 0) {
    return Error::invalid_argument("Engine::begin_step")
        .object("learning_rate")
        .wanted("a number from 0 to 3.4e38")
        .got(number_text(rate))
        .advice("check what the learning-rate schedule passes in StepOptions");
  }
  return check_units_without_gradient(step.units_without_gradient);
}

Result<void> EngineState::check_wear(const char* operation) const {
  if (!worn_) return ok();
  return Error(ErrorCode::no_space, operation)
      .object("penstock.endurance_cap")
      .reason("a step would write more to a drive than it allows. " + *worn_)
      .advice("commit or save the run, and continue it on another drive or with a higher cap");
}

Result<void> EngineState::check_units_without_gradient(const std::vector<std::uint32_t>& units) const {
  constexpr const char* operation = "Engine::begin_step";
  std::vector<bool> listed(options_.model.units.size());
  for (const std::uint32_t unit : units) {
    PENSTOCK_TRY(check_unit(operation, unit));
    if (!listed[unit]) {
      listed[unit] = true;
      continue;
    }
    return Error::invalid_argument(operation)
        .object("units_without_gradient")
        .reason("a unit is listed twice")
        .got(unit);
  }
  // A flat is reduced whole: its owner's other parameters would get a gradient too.
  for (std::uint32_t user = 0; user < options_.model.units.size(); ++user) {
    if (listed[user]) continue;
    for (const ParameterId shared : options_.model.units[user].shared) {
      if (!listed[shared.unit] || context_.is_frozen(shared)) continue;
      return Error::invalid_argument(operation)
          .object("units_without_gradient")
          .reason("a unit that is not listed shares a parameter of unit " +
                  options_.model.units[shared.unit].name)
          .wanted("unit " + std::to_string(user) + " (" + options_.model.units[user].name + ") too")
          .advice("list both, or pass zeros for the parameters that get no gradient");
    }
  }
  return ok();
}

}  // namespace penstock::zero
