// A step's begin, its end and its abandonment.

#include "zero/engine/engine_state.hpp"

#include <utility>

namespace penstock::zero {

Result<void> EngineState::begin_step(const StepOptions& step) {
  PENSTOCK_TRY(ready("Engine::begin_step"));
  PENSTOCK_TRY(check_here("Engine::begin_step", ParkKinds::parameters | ParkKinds::gradients));
  PENSTOCK_TRY(between_steps("Engine::begin_step"));
  PENSTOCK_TRY(check_step(step));
  PENSTOCK_TRY(check_wear("Engine::begin_step"));
  const std::uint32_t micro_batches =
      step.micro_batches.value_or(options_.config.gradient_accumulation_steps);
  PENSTOCK_TRY(checkpoints_->check_no_leases("Engine::begin_step"));
  PENSTOCK_TRY(checkpoints_->begin_step());
  PENSTOCK_TRY(residency_->begin_step(unit_order(options_.model.units.size(), micro_batches), *this));
  shard_reads_.begin_step();
  gradients_.begin_step(micro_batches, step.units_without_gradient);
  residency_->expect_no_gradients(step.units_without_gradient);
  step_.set_learning_rate(step.learning_rate);
  units_to_reduce_ = gradients_.units_to_reduce();
  update_.begin_step();
  clock_.restart();
  return ok();
}

Result<StepOutcome> EngineState::step() {
  PENSTOCK_TRY(ready("Engine::step"));
  PENSTOCK_TRY(check_here("Engine::step", ParkKinds::all));
  PENSTOCK_TRY(gradients_.check_complete());
  PENSTOCK_TRY(residency_->check_no_leases("Engine::step"));
  PENSTOCK_TRY(checkpoints_->check_no_leases("Engine::step"));
  PENSTOCK_TRY(step_.learning_rate());
  clock_.begin_stepping();
  auto outcome = end_step();
  if (!outcome) clock_.interrupt();
  return outcome;
}

Result<StepOutcome> EngineState::end_step() {
  PENSTOCK_TRY(context_.fail_unless_retryable(context_.runtime.check_stores()));
  PENSTOCK_TRY(finish_last_update());
  start_commit();
  const UpdateSweep::Updated last_update = update_.last();
  const TimePoint began = Clock::steady().now();
  PENSTOCK_TRY(residency_->finish_gradients(*this));
  PENSTOCK_TRY(gradients_.finish_reductions());
  const TimePoint waited = Clock::steady().now() - began;
  PENSTOCK_TRY(checkpoints_->forget_contents());
  PENSTOCK_TRY(residency_->drop_for_update("Engine::step", *this));
  if (commits_) commits_->complete();
  if (context_.failure) return *context_.failure;
  const std::vector<swap::PathReport> paths = context_.internals.paths_when_stored();
  if (context_.internals.memory_is_limited()) wear_.note_other_writes();
  const auto wear = wear_.end_step(paths, options_.plan.tile_writes + options_.plan.shard_writes);
  PENSTOCK_TRY_ASSIGN(auto outcome, step_.finish(gradients_.micro_batches(),
                                                 gradients_.units_without_gradient(), wear.refuses));
  const auto& [refuses, refusing_rank] = step_.wear();
  if (refuses != WearLimit::Refuses::nothing) {
    worn_ =
        wear.refuses == refuses ? wear.reason : "rank " + std::to_string(refusing_rank) + " has reached it";
  }
  for (std::string& warning : wear_.take_warnings(paths)) context_.internals.add_message(std::move(warning));
  outcome.gradient_wait = waited;
  outcome.previous_update = last_update.duration;
  outcome.updated_by_cpu = last_update.by_cpu;
  outcome.updated_on_device = last_update.on_device;
  predict_attempt(gradients_.micro_batches());
  context_.completed_steps = outcome.step;
  gradients_.end_step();
  reduced_.clear();
  if (options_.ends_rounds) context_.runtime.end_round();
  residency_->end_step();
  predict_every_order();
  checkpoints_->end_step();
  update_.end_step();
  if (refuses == WearLimit::Refuses::this_step) {
    PENSTOCK_TRY(check_wear("Engine::step"));
  }
  const bool skipped = outcome.kind == StepOutcome::Kind::skipped;
  if (skipped) ++skipped_steps_;
  const auto scaled = step_.loss_scaler().update(/*overflow=*/skipped);
  clock_.end(outcome);
  if (context_.tracks != nullptr) context_.tracks->end_round();
  if (options_.after_step) options_.after_step(outcome);
  PENSTOCK_TRY(scaled);
  return outcome;
}

StepTimes EngineState::step_times() const {
  StepTimes times = clock_.times();
  times.updating = update_.busy();
  return times;
}

/// Waits until no stream of the trainer uses what it has released: ranges are given to others without their fences.
Result<void> EngineState::wait_for_uses() {
  std::vector<tiers::Fence> uses = checkpoints_->last_uses();
  const std::vector<tiers::Fence> of_ranges = context_.fences.all();
  uses.insert(uses.end(), of_ranges.begin(), of_ranges.end());
  for (const FlatState& flat : context_.flats) {
    for (const auto& [stream, use] : flat.gathered.last_uses) uses.push_back(use);
    uses.insert(uses.end(), flat.grad.written_by.begin(), flat.grad.written_by.end());
  }
  for (const tiers::Fence& use : uses)
    PENSTOCK_TRY(context_.wait_for(*use, "the trainer's use of the engine's tensors"));
  return ok();
}

Result<void> EngineState::abandon_step(tiers::Stream& stream, std::string cause) {
  constexpr const char* operation = "Engine::abandon_step";
  PENSTOCK_TRY(check_not_failed(operation));
  PENSTOCK_TRY(check_here(operation, ParkKinds::parameters | ParkKinds::gradients));
  PENSTOCK_TRY(check_stream(operation, stream));
  PENSTOCK_TRY(residency_->check_no_leases(operation));
  PENSTOCK_TRY(checkpoints_->check_no_leases(operation));
  if (context_.interruption && update_.has_begun()) {
    return context_.fail(
        Error(ErrorCode::failed_state, operation)
            .reason(
                "a rank has abandoned the step, which penstock.update_in_backward has begun to update here")
            .note("cause   " + context_.interruption->message())
            .advice("destroy the engine, and continue from the last commit or checkpoint"));
  }
  PENSTOCK_TRY(check_not_updating(operation));
  Error error = Error(ErrorCode::interrupted, operation)
                    .reason(cause.empty() ? "the trainer has abandoned the step" : std::move(cause));
  context_.interrupt(error);
  context_.internals.wait_ignoring_stores([this] { return moves_are_idle(); });
  PENSTOCK_TRY(context_.recover(stream));
  PENSTOCK_TRY(wait_for_uses());
  const std::uint32_t begun = gradients_.micro_batches_begun();
  residency_->abandon_step(
      unit_order(options_.model.units.size(), options_.config.gradient_accumulation_steps));
  gathers_.abandon_step();
  checkpoints_->abandon_step();
  PENSTOCK_TRY(gradients_.abandon_step());
  reduced_.clear();
  update_.end_step();
  clock_.restart();
  if (context_.tracks != nullptr) context_.tracks->end_round();
  if (options_.ends_rounds) context_.runtime.end_round();
  predict_attempt(begun);
  return ok();
}

}  // namespace penstock::zero
