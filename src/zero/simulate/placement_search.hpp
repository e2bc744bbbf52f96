#pragma once

#include "zero/estimate/config_search.hpp"
#include "zero/simulate/timed_config.hpp"

#include <optional>
#include <string>
#include <vector>

namespace penstock::zero::simulate {

/// Less is within what two simulations of the same step may differ, and not worth another setting.
inline constexpr double gain_least = 0.01;

/// The configuration with which a step takes the fewest simulated seconds on a machine.
///
/// Of the candidates of estimate::ConfigSearch that fit the budgets, the memory of the machine, and beside the
/// activations, each is simulated, also with as many states on the device as its budget has room for. Chosen is the
/// fastest one, or the first in the order of the bytes that they move that is within gain_least of it. Then these
/// settings are tried one after the other, and the fastest value of each is kept where it makes the step faster by more
/// than gain_least; what the base was given is not tried. Only the last one is tried where a step waits for less than
/// that:
///
/// - penstock.tile_elements: 2 and 4 times as many. Not fewer: what a request costs beside its bytes is not simulated;
/// - the device's part of the update, where it may update offloaded states: offload_optimizer.ratio 0.5 and 0, and
///   penstock.update_split automatic;
/// - penstock.device_states: of what the device's budget has room for none, 2, 4, 5, 6, 7 eighths and all;
/// - of states on disk penstock.tiles_in_flight: 2 and 4 times as many;
/// - penstock.device_budget, where blocks repeat their forward: the least with which the configuration runs, with and
///   without its device_states, so that activations have the rest.
///
/// Where states stay on the device, another setting may leave room for fewer of them. Simulations run in parallel.
///
/// Where the machine has several disks of other weights or rates, their weights are penstock.path_weights of what has
/// swap files, and their mixed rates are penstock.path_limits.
struct PlacementSearch {
  /// A candidate that fits.
  struct Fitting {
    Config config;
    std::string name;
    double seconds = 0, waits = 0;  ///< of a step, and those in which the trainer waits
    std::optional<estimate::Recomputation> recomputation;

    [[nodiscard]] bool waits_for_nothing() const { return waits < seconds * gain_least; }
  };
  /// A value of a setting, all others as chosen until then.
  struct Tried {
    std::string setting;
    std::optional<double> seconds = {};  ///< none: it cannot run
    bool kept = false;
  };

  std::vector<Fitting> fitting;  ///< the fastest first
  std::vector<Tried> tried;
  Fitting chosen;                    ///< with the values that were kept, also in its name
  TimedConfig timed;                 ///< of the chosen one, with what else would help
  estimate::PlanEstimate plan;       ///< of the chosen one
  ByteCount host_need, device_need;  ///< its least: of a node and of a rank

  /// Precondition: check_timed_run().
  ///
  /// Errors: budget_too_small, where nothing fits the budgets, the machine, or beside the activations;
  /// invalid_argument, for budgets above the machine's memory, and rates that the machine does not give; those of
  /// ConfigSearch::run() and simulate_model().
  [[nodiscard]] static Result<PlacementSearch> run(const estimate::SearchOptions& options,
                                                   const ModelLayout& layout, const TimedRun& run);
};

}  // namespace penstock::zero::simulate
