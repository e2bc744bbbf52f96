#pragma once

#include "zero/simulate/machine_file.hpp"

#include <optional>
#include <string>
#include <vector>

namespace penstock::zero::simulate {

struct SimulationOptions {
  ByteCount host_budget;
  swap::Eviction eviction = swap::Eviction::planned;
  ByteCount reuse_distance_max;  ///< for Eviction::reuse_distance
  ByteCount lookahead;           ///< as in swap::RuntimeOptions
  bool update_beside = false;    ///< these as in swap::ReplayOptions
  bool update_in_backward = false;
  std::uint32_t dropped_ahead = 0;
  /// > 0. 1: only the first step. Otherwise so many at least, and then until one moves the bytes of the one before it,
  /// to half a percent, or there are steps_max: the last one stands for all that follow.
  std::uint32_t steps = 4;
};
inline constexpr std::uint32_t steps_max = 64;

/// What steps of a trace take on a machine.
struct Simulation {
  /// Another machine or setting, and the seconds of its last step.
  struct Change {
    std::string what;
    double seconds = 0;
  };
  swap::ReplayedRound first, steady;  ///< the first step, and the last
  std::uint32_t steps = 0;
  std::vector<Change> changes;  ///< those that shorten the steady step, the most helpful first

  /// Adds a change, unless it shortens the steady step by less than half a percent.
  void note_change(std::string what, double seconds);
};

/// Replays the trace with the decisions of a runtime, see swap::Replay, without changes. Errors: as simulate().
[[nodiscard]] Result<Simulation> simulate_steps(const swap::AccessTrace& trace, const Machine& machine,
                                                const SimulationOptions& options);

/// The same, and once with each change of the machine and the settings.
///
/// Errors: those of swap::Replay; invalid_argument, for no steps.
[[nodiscard]] Result<Simulation> simulate(const swap::AccessTrace& trace, const Machine& machine,
                                          const SimulationOptions& options);

/// The disk that has first been written as often as its maker lets it, and the steps until then.
struct Endurance {
  std::uint32_t disk = 0;
  double steps = 0;
};
/// Null where no disk is written whose endurance is known.
[[nodiscard]] std::optional<Endurance> endurance_of(const Simulation& simulation, const Machine& machine);

}  // namespace penstock::zero::simulate
