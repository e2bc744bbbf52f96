#pragma once

#include "zero/layout/step_trace.hpp"
#include "zero/simulate/simulation.hpp"

namespace penstock::zero::simulate {

/// The step of a rank as simulate() takes it.
struct PlannedStep {
  swap::AccessTrace trace;
  SimulationOptions options;
  MemoryPlan::Update update;  ///< which processor updates the tiles
  /// Of tiles that the device keeps. The trace has them in host memory, and options.host_budget room for them.
  ByteCount kept_states;
};

/// The trace that the layout gives, with all tiles and checkpoints, and the settings of the runtime of `plan`: of its
/// host memory, what the trace uses.
///
/// Errors: those of derive_trace().
[[nodiscard]] Result<PlannedStep> plan_step(const Config& config, const ModelLayout& model,
                                            const MemoryPlan& plan, const StepShape& shape);

/// Seconds of a step's phases of a trainer that waits for nothing: of all micro-batches; the update alone.
struct PhaseSeconds {
  double forward = 0, backward = 0, update = 0;
};
/// Sets the rates with which the uses of the trace take these: a read of a shard in the backward takes as long as in
/// the forward, and the rest of the backward is that of the gradients.
void set_use(swap::ReplayCosts& costs, const swap::AccessTrace& trace, const PhaseSeconds& seconds);

}  // namespace penstock::zero::simulate
