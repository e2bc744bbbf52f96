#pragma once

#include "zero/simulate/machine_file.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
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
  std::uint32_t dropped_ahead = 0, dropped_ahead_later = std::numeric_limits<std::uint32_t>::max(),
                dropped_between = 0;
  std::size_t stores_max = std::numeric_limits<std::size_t>::max();
  /// > 0. How many at least; with 1 only the first. They are doubled while they have fewer than uses_least uses, and
  /// then until the mean of their later half differs by at most one percent from that of the quarter before it. Doubled
  /// they are never more than steps_max, and have at most uses_max uses. Which copies are in memory at the end of a
  /// step may change for ever, and with it what the next one reads.
  std::uint32_t steps = 4;
  bool bytes_settle = true;  ///< false: only the seconds have to, which takes fewer steps
};
inline constexpr std::uint32_t steps_max = 64;
inline constexpr std::uint64_t uses_least = std::uint64_t{1} << 14;  // which take a tenth of a second
inline constexpr std::uint64_t uses_max = std::uint64_t{1} << 20;    // which take seconds

/// What steps of a trace take on a machine.
struct Simulation {
  /// Another machine or setting, and the seconds of its steady step.
  struct Change {
    std::string what;
    double seconds = 0;
  };
  swap::ReplayedRound first;   ///< the first step, before which nothing is in memory
  swap::ReplayedRound steady;  ///< the mean of the later half of `steps`, which stands for all that follow
  std::uint32_t steps = 0;
  bool settled = false;         ///< false: later steps may move other bytes, or take other times
  std::vector<Change> changes;  ///< those that shorten the steady step, the most helpful first

  /// The number of the first step in `steady`.
  [[nodiscard]] std::uint32_t steady_from() const { return steps / 2 + 1; }
  /// Adds a change, unless it shortens the steady step by less than two percent.
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
