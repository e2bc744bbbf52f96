#pragma once

#include "zero/simulate/planned_step.hpp"

namespace penstock::zero::simulate {

/// A training run whose ranks all do the same.
struct TrainingRun {
  std::uint32_t ranks = 1, ranks_per_node = 1;
  std::uint32_t micro_batches = 1;  ///< of a step
  std::uint64_t tokens = 0;         ///< of a micro-batch of a rank
  DType dtype = DType::bf16;        ///< of parameters and gradients
  double repeated_forward = 0;      ///< the part of the forward that the backward repeats; 1: all of it
  tiers::DeviceMemory device_memory = tiers::DeviceMemory::separate;
};
/// What one rank has of a node that `ranks_per_node` share: of each disk, its endurance and the update, a part; its own
/// device. Its uses are those of `step`, a step of `model`.
///
/// With P parameters each token takes 2 P operations in the forward, and 4 P and what is repeated of the forward in the
/// backward. The gathers of the trace copy the rank's shards from host memory and bring those of the other ranks: what
/// stays on the device is not gathered again. A backward reduces gradients and copies the rank's to host memory.
/// Checkpoints that leave the device are copied there and back. Whichever takes longest is what a forward or a backward
/// takes.
/// Tiles that the device updates take what their bytes need to and from it, and what it needs for them. The device and
/// the processors update at the same time: each its part of the tiles, or with UpdateSplit::automatic all together.
///
/// Errors: invalid_argument, for rates that the machine does not give, and for no tokens; unsupported, for a trace
/// without uses of shards and gradients, as of a rank that has both on its device.
[[nodiscard]] Result<Machine> share_of(const Machine& node, const ModelLayout& model, const PlannedStep& step,
                                       const TrainingRun& run);
/// Operations of a rank's step in which nothing is repeated: 6 P for each token.
[[nodiscard]] double model_operations(const ModelLayout& model, const TrainingRun& run);

/// What steps of a model take with a configuration on nodes of a kind.
struct ModelSimulation {
  PlannedStep step;       ///< of a rank
  Simulation simulation;  ///< its changes are other machines, budgets and state formats
  Machine share;          ///< what the rank has of its node
};
/// Of more micro-batches in a step, so many are replayed, and each further one takes what the second half of them does.
inline constexpr std::uint32_t most_micro_batches = 16;
/// Plans a rank, derives its trace and replays it, and again with each change.
///
/// Errors: budget_too_small, for a plan that needs more memory than the machine has; those of plan_memory(),
/// plan_step(), share_of() and simulate().
[[nodiscard]] Result<ModelSimulation> simulate_model(const Config& config, const ModelLayout& model,
                                                     const Machine& node, const TrainingRun& run,
                                                     std::uint32_t steps);

}  // namespace penstock::zero::simulate
