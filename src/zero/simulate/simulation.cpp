#include "zero/simulate/simulation.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace penstock::zero::simulate {

namespace {

struct Alternative {
  const char* what;
  std::function<void(Machine&, SimulationOptions&)> change;
};

const Alternative alternatives[] = {
    {"disks twice as fast",
     [](Machine& machine, SimulationOptions&) {
       for (auto& disk : machine.costs.disks) disk.rates = scaled(disk.rates, 2);
     }},
    {"uses that take half of their time",
     [](Machine& machine, SimulationOptions&) {
       for (double& rate : machine.costs.use) rate *= 2;
     }},
    {"25 % more host budget",
     [](Machine&, SimulationOptions& options) {
       options.host_budget = ByteCount(options.host_budget.value() / 4 * 5);
     }},
    {"twice the lookahead",
     [](Machine&, SimulationOptions& options) { options.lookahead = options.lookahead * 2; }},
};

/// Which tensors are in memory at the end of a step may alternate a little for ever.
bool are_alike(const swap::ReplayedRound& one, const swap::ReplayedRound& other) {
  const auto near = [](ByteCount a, ByteCount b) {
    return std::max(a, b) - std::min(a, b) <= ByteCount(std::max(a, b).value() / 200);
  };
  return near(one.read, other.read) && near(one.written, other.written);
}

}  // namespace

void Simulation::note_change(std::string what, double seconds) {
  constexpr double gain_min = 0.005;  // a smaller one is not worth a line
  if (seconds >= steady.seconds * (1 - gain_min)) return;
  const auto later = std::upper_bound(changes.begin(), changes.end(), seconds,
                                      [](double a, const Change& b) { return a < b.seconds; });
  changes.insert(later, {std::move(what), seconds});
}

Result<Simulation> simulate_steps(const swap::AccessTrace& trace, const Machine& machine,
                                  const SimulationOptions& options) {
  if (options.steps == 0)
    return Error::invalid_argument("simulate").object("steps").wanted("1 or more").got(std::uint64_t{0});
  PENSTOCK_TRY_ASSIGN(const auto replayed,
                      swap::Replay::create(trace, {.host_budget = options.host_budget,
                                                   .eviction = options.eviction,
                                                   .reuse_distance_max = options.reuse_distance_max,
                                                   .lookahead = options.lookahead,
                                                   .costs = machine.costs,
                                                   .update_beside = options.update_beside,
                                                   .update_in_backward = options.update_in_backward,
                                                   .dropped_ahead = options.dropped_ahead}));
  Simulation simulation;
  PENSTOCK_TRY_ASSIGN(simulation.first, replayed->round());
  simulation.steady = simulation.first;
  simulation.steps = 1;
  bool goes_on = options.steps > 1;
  while (goes_on) {
    const swap::ReplayedRound before = simulation.steady;
    PENSTOCK_TRY_ASSIGN(simulation.steady, replayed->round());
    ++simulation.steps;
    const bool may_end = are_alike(before, simulation.steady) || simulation.steps >= steps_max;
    goes_on = simulation.steps < options.steps || !may_end;
  }
  return simulation;
}

Result<Simulation> simulate(const swap::AccessTrace& trace, const Machine& machine,
                            const SimulationOptions& options) {
  PENSTOCK_TRY_ASSIGN(Simulation simulation, simulate_steps(trace, machine, options));
  for (const auto& [what, change] : alternatives) {
    Machine other = machine;
    SimulationOptions other_options = options;
    change(other, other_options);
    PENSTOCK_TRY_ASSIGN(const Simulation changed, simulate_steps(trace, other, other_options));
    simulation.note_change(what, changed.steady.seconds);
  }
  return simulation;
}

std::optional<Endurance> endurance_of(const Simulation& simulation, const Machine& machine) {
  std::optional<Endurance> least;
  for (std::uint32_t i = 0; i < machine.costs.disks.size(); ++i) {
    const ByteCount endurance = machine.costs.disks[i].endurance,
                    written = simulation.steady.disks[i].written;
    if (endurance.is_zero() || written.is_zero()) continue;
    const double steps = static_cast<double>(endurance.value()) / static_cast<double>(written.value());
    if (!least || steps < least->steps) least = {.disk = i, .steps = steps};
  }
  return least;
}

}  // namespace penstock::zero::simulate
