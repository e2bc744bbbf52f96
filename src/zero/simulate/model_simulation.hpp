#pragma once

#include "zero/simulate/step_work.hpp"

namespace penstock::zero::simulate {

/// What one rank has of a node that `ranks_per_node` share: of each disk, its endurance and the update, a part; its own
/// device. Its uses are those of `step`, which take the seconds of `work`.
[[nodiscard]] Machine share_of(const Machine& node, const PlannedStep& step, const StepWork& work,
                               const TrainingRun& run);

/// What steps of a model take with a configuration on nodes of a kind.
struct ModelSimulation {
  PlannedStep step;       ///< of a rank
  Simulation simulation;  ///< its changes are other machines, budgets and state formats
  StepWork work;
  Machine share;  ///< what the rank has of its node

  /// StepWork::resources(), and of each disk that is used the bytes of a steady step: as many as possible at its rate
  /// for both directions together, the others at that of theirs.
  [[nodiscard]] std::vector<Work> resources() const;
};
/// Of more micro-batches in a step, so many are replayed, and each further one takes what the second half of them does.
inline constexpr std::uint32_t most_micro_batches = 16;
/// Plans a rank, derives its trace and replays it. Of a rank that keeps parameters and gradients on its device nothing
/// is replayed: its forward, its backward and its update follow each other. `steps` and `bytes_settle` are those of
/// SimulationOptions.
///
/// Errors: budget_too_small, for a plan that needs more memory than the machine has; those of plan_memory(),
/// plan_step(), step_work() and simulate_steps().
[[nodiscard]] Result<ModelSimulation> simulate_model_steps(const Config& config, const ModelLayout& model,
                                                           const Machine& node, const TrainingRun& run,
                                                           std::uint32_t steps, bool bytes_settle = true);
/// The same, and once with each change, on up to so many threads. Errors: the same.
[[nodiscard]] Result<ModelSimulation> simulate_model(const Config& config, const ModelLayout& model,
                                                     const Machine& node, const TrainingRun& run,
                                                     std::uint32_t steps, std::uint32_t threads = 1);

}  // namespace penstock::zero::simulate
