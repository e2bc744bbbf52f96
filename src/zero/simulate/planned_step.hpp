#pragma once

#include "zero/layout/step_trace.hpp"
#include "zero/simulate/simulation.hpp"

#include <cstddef>

namespace penstock::zero::simulate {

/// The step of a rank as simulate() takes it.
struct PlannedStep {
  swap::AccessTrace trace;
  SimulationOptions options;
  MemoryPlan::Update update;  ///< which processor updates the tiles
  /// Of tiles that the device keeps. The trace has them in host memory, and options.host_budget room for them.
  ByteCount kept_states;
  bool stays_gathered = false;  ///< below stage 3: each parameter is gathered once a step
};

/// The trace that the layout gives, with all tiles and checkpoints, and the settings of the runtime of `plan`: of its
/// host memory, what the trace uses.
///
/// Errors: those of derive_trace().
[[nodiscard]] Result<PlannedStep> plan_step(const Config& config, const ModelLayout& model,
                                            const MemoryPlan& plan, const StepShape& shape);

/// Bytes that gathers read from host memory in a step, and gradients that come to it.
struct GatheredBytes {
  double forward = 0, backward = 0, gradients = 0;
  double first_forward = 0;       ///< of the first micro-batch: later ones do not read what stays gathered
  std::size_t micro_batches = 0;  ///< whose gradients are in the trace
};
[[nodiscard]] GatheredBytes gathered_bytes(const swap::AccessTrace& trace);

/// Seconds of a step's phases of a trainer that waits for nothing: of all micro-batches; the update alone.
struct PhaseSeconds {
  double forward = 0, backward = 0, update = 0;
};
/// Sets the rates with which the uses of the trace take these: that of shards is what the first micro-batch's forward
/// takes to read them, also in backwards and later forwards, and gradients take the rest. Where the trace has no shard,
/// gradients have all, and where it has neither, checkpoints.
void set_use(swap::ReplayCosts& costs, const swap::AccessTrace& trace, const PhaseSeconds& seconds);

}  // namespace penstock::zero::simulate
