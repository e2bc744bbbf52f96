#include "zero/simulate/simulation.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <span>
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

swap::ReplayedRound mean(std::span<const swap::ReplayedRound> rounds) {
  swap::ReplayedRound mean = rounds.front();
  constexpr std::array times = {
      &swap::ReplayedRound::seconds,           &swap::ReplayedRound::used,
      &swap::ReplayedRound::waited_for_loads,  &swap::ReplayedRound::waited_for_room,
      &swap::ReplayedRound::waited_for_update, &swap::ReplayedRound::update,
      &swap::ReplayedRound::update_used};
  for (const auto& round : rounds.subspan(1)) {
    mean.read += round.read;
    mean.written += round.written;
    for (std::size_t i = 0; i < mean.by_purpose.size(); ++i) {
      mean.by_purpose[i].read += round.by_purpose[i].read;
      mean.by_purpose[i].written += round.by_purpose[i].written;
    }
    for (const auto time : times) mean.*time += round.*time;
    for (std::size_t i = 0; i < mean.disks.size(); ++i) {
      mean.disks[i].read += round.disks[i].read;
      mean.disks[i].written += round.disks[i].written;
      mean.disks[i].busy += round.disks[i].busy;
    }
  }
  const std::uint64_t count = rounds.size();
  mean.read = mean.read / count;
  mean.written = mean.written / count;
  for (auto& moved : mean.by_purpose) moved = {moved.read / count, moved.written / count};
  for (const auto time : times) mean.*time /= static_cast<double>(count);
  for (auto& disk : mean.disks)
    disk = {.read = disk.read / count,
            .written = disk.written / count,
            .busy = disk.busy / static_cast<double>(count)};
  return mean;
}

bool are_alike(const swap::ReplayedRound& one, const swap::ReplayedRound& other, bool also_bytes) {
  const auto near = [](auto a, auto b) { return std::max(a, b) - std::min(a, b) <= std::max(a, b) / 100; };
  const bool has_bytes =
      near(one.read.value(), other.read.value()) && near(one.written.value(), other.written.value());
  return near(one.seconds, other.seconds) && (has_bytes || !also_bytes);
}

}  // namespace

void Simulation::note_change(std::string what, double seconds) {
  constexpr double gain_min = 0.02;  // both figures are means that differ from later ones by a percent
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
                                                   .dropped_ahead = options.dropped_ahead,
                                                   .dropped_ahead_later = options.dropped_ahead_later,
                                                   .dropped_between = options.dropped_between,
                                                   .stores_max = options.stores_max}));
  std::vector<swap::ReplayedRound> rounds;
  const auto may_double = [&trace](std::uint64_t steps, std::uint64_t uses) {
    return steps * 2 <= steps_max && steps * 2 * trace.uses.size() <= uses;
  };
  std::uint32_t steps = options.steps;
  while (steps > 1 && may_double(steps, uses_least)) steps *= 2;
  const auto mean_of = [&](std::uint32_t begin, std::uint32_t end) {
    return mean(std::span(rounds).subspan(begin, end - begin));
  };
  while (true) {
    while (rounds.size() < steps) {
      PENSTOCK_TRY_ASSIGN(rounds.emplace_back(), replayed->round());
    }
    const swap::ReplayedRound steady = mean_of(steps / 2, steps);
    const bool is_settled =
        steps == 1 || are_alike(mean_of(steps / 4, steps / 2), steady, options.bytes_settle);
    if (is_settled || !may_double(steps, uses_max))
      return Simulation{rounds.front(), steady, steps, is_settled && steps > 1, {}};
    steps *= 2;
  }
}

Result<Simulation> simulate(const swap::AccessTrace& trace, const Machine& machine,
                            const SimulationOptions& options) {
  PENSTOCK_TRY_ASSIGN(Simulation simulation, simulate_steps(trace, machine, options));
  for (const auto& [what, change] : alternatives) {
    Machine other = machine;
    SimulationOptions other_options = options;
    other_options.bytes_settle = false;
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
