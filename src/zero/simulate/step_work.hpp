#pragma once

#include "zero/simulate/machine_file.hpp"
#include "zero/simulate/planned_step.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero::simulate {

/// A training run whose ranks all do the same, but for the host memory that they have for it.
struct TrainingRun {
  std::uint32_t ranks = 1, ranks_per_node = 1;
  std::optional<std::uint32_t> local_rank =
      std::nullopt;                 ///< of a node, simulated; none: as plan_memory() says
  std::uint32_t micro_batches = 1;  ///< of a step
  std::uint64_t tokens = 0;         ///< of a micro-batch of a rank
  DType dtype = DType::bf16;        ///< of parameters and gradients
  ElementCount used_by_token = {};  ///< of the parameters, by the arithmetic of each; 0: all
  double repeated_forward = 0;      ///< the part of the forward that the backward repeats; 1: all of it
  tiers::DeviceMemory device_memory = tiers::DeviceMemory::separate;
};

/// One resource that a rank has, or its part of one of the node, and what a step asks of it: amount / rate = seconds.
struct Work {
  std::string what;
  double amount = 0,
         rate = 0;  ///< floating-point operations and bytes, and these a second; rate 0: in no time
  bool in_operations = false;  ///< else in bytes

  [[nodiscard]] double seconds() const { return rate > 0 ? amount / rate : 0; }
};

/// What the arithmetic of a step asks of a rank's resources, without its disks.
struct StepWork {
  /// Of all micro-batches. Operations, gathers and copies go on at the same time.
  struct Phase {
    Work operations, gathered, copied;
    [[nodiscard]] double seconds() const;
  } forward, backward;
  /// The processors' part and the device's go on at the same time, and so do copies and arithmetic of the latter.
  struct Update {
    Work by_processors, copied, by_device;
    [[nodiscard]] double seconds() const;
  } update;

  [[nodiscard]] PhaseSeconds seconds() const;
  /// Those that are used, each for the whole step.
  [[nodiscard]] std::vector<Work> resources() const;
};

/// With P elements of parameters that a token uses, it takes 2 P operations in the forward, and 4 P and what is
/// repeated of the forward in the backward. The gathers of the trace copy the rank's shards from host memory and bring
/// those of the other ranks: what stays on the device is not gathered again. A backward reduces gradients and copies
/// the rank's to host memory. Checkpoints that leave the device are copied there and back. Tiles that the device
/// updates are copied to it and back; with UpdateSplit::automatic it gets so many that both processors end at one time.
///
/// Errors: invalid_argument, for rates that the machine does not give, and for no tokens.
[[nodiscard]] Result<StepWork> step_work(const Machine& node, const ModelLayout& model,
                                         const PlannedStep& step, const TrainingRun& run);

/// Operations of a rank's step in which nothing is repeated: 6 P for each token.
[[nodiscard]] double model_operations(const ModelLayout& model, const TrainingRun& run);

}  // namespace penstock::zero::simulate
