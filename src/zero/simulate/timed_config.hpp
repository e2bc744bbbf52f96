#pragma once

#include "zero/estimate/activations.hpp"
#include "zero/estimate/plan_estimate.hpp"
#include "zero/simulate/model_simulation.hpp"

#include <optional>

namespace penstock::zero::simulate {

/// The run whose configurations are timed, and the machine.
struct TimedRun {
  Machine machine;  ///< its disks are those of the directories of swap files, in the same order
  estimate::RunShape shape;
  std::uint64_t tokens = 0;         ///< of a micro-batch of a rank
  ElementCount used_by_token = {};  ///< see TrainingRun
  /// Activations that the trainer keeps on the device, beside the engine. As many blocks repeat their forward as must.
  struct Activations {
    estimate::ActivationSizes sizes;
    std::uint64_t blocks = 0;
    ByteCount memory;  ///< of the device, for both
  };
  std::optional<Activations> activations = {};
};

/// What a step takes with a configuration.
struct TimedConfig {
  ModelSimulation model;
  std::optional<estimate::Recomputation> recomputation;  ///< of TimedRun::activations

  [[nodiscard]] double seconds() const { return model.simulation.steady.seconds; }
};

/// Errors: invalid_argument, unless the configuration has as many directories of swap files as there are disks; for a
/// machine that does not say how fast host memory and a separate device copy; and for more memory for activations than
/// its device has.
[[nodiscard]] Result<void> check_timed_run(const TimedRun& run, const Config& config);

/// `directories`: of these penstock.path_weights are.
/// Errors: budget_too_small, where activations or the plan do not fit; those of simulate_model().
[[nodiscard]] Result<TimedConfig> time_config(const Config& config, const ModelLayout& layout,
                                              const TimedRun& run);
/// The same with changes, see simulate_model().
[[nodiscard]] Result<TimedConfig> time_changes(const Config& config, const ModelLayout& layout,
                                               const TimedRun& run);

}  // namespace penstock::zero::simulate
