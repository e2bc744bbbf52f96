#pragma once

#include "zero/layout/step_trace.hpp"
#include "zero/simulate/simulation.hpp"

namespace penstock::zero::simulate {

/// The step of a rank as simulate() takes it.
struct PlannedStep {
  swap::AccessTrace trace;
  SimulationOptions options;
};

/// The trace that the layout gives, and the settings of the runtime of `plan`: of its host memory, what the trace uses.
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

/// A training run whose ranks all do the same.
struct TrainingRun {
  std::uint32_t ranks = 1, ranks_per_node = 1;
  std::uint32_t micro_batches = 1;  ///< of a step
  std::uint64_t tokens = 0;         ///< of a micro-batch of a rank
  bool recompute = false;           ///< the backward repeats the forward
};
/// What one rank has of a node that `ranks_per_node` share: of the disk, its endurance and the update, a part; its own
/// device. Its uses are those of a step of `model` that is in `trace`.
///
/// Of the P parameters, with which each token takes 2 P operations in the forward and 4 P in the backward, or 6 P, a
/// gather brings 16 bits each from the other ranks, and the rank's shard is copied from host memory. Whichever takes
/// longest is what a forward or a backward takes; a backward reduces gradients, too, which is as much.
///
/// Errors: invalid_argument, for rates that the machine does not give, and for no tokens.
[[nodiscard]] Result<Machine> share_of(const Machine& node, const ModelLayout& model,
                                       const swap::AccessTrace& trace, const TrainingRun& run);
/// Operations of a rank's step in which nothing is repeated: 6 P for each token.
[[nodiscard]] double model_operations(const ModelLayout& model, const TrainingRun& run);

}  // namespace penstock::zero::simulate
