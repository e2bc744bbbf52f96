#include "simulate/simulate_report.hpp"

#include <utility>

namespace penstock::tool {

namespace {

using swap::ReplayedRound;
using zero::simulate::Simulation;

std::string share_of(double part, double whole) {
  return whole > 0 ? fmt::format("{:.0f} %", 100 * part / whole) : "";
}

std::string name_of_disk(std::size_t disk, std::size_t disks) {
  return disks == 1 ? "disk" : "disk " + std::to_string(disk + 1);
}

/// Of those of which the steady one is the mean.
std::string name_of_steps(const Simulation& simulation) {
  return simulation.steady_from() == simulation.steps
             ? fmt::format("step {}", simulation.steps)
             : fmt::format("steps {}-{}", simulation.steady_from(), simulation.steps);
}

/// The part of the machine that works longest in a step.
struct Limit {
  std::string what;
  double seconds = 0;
};
Limit limit_of(const SimulatedCase& simulated) {
  const ReplayedRound& steady = simulated.simulation.steady;
  Limit limit = {
      simulated.operations > 0 ? "the device's operations and links" : "the trainer's use of tensors",
      steady.used};
  const auto consider = [&limit](std::string what, double seconds) {
    if (seconds > limit.seconds) limit = {std::move(what), seconds};
  };
  consider("the update of tiles", steady.update_used);
  for (std::size_t i = 0; i < steady.disks.size(); ++i)
    consider((steady.disks.size() == 1 ? "the " : "") + name_of_disk(i, steady.disks.size()),
             steady.disks[i].busy);
  return limit;
}

Json::Value to_json(const ReplayedRound& round) {
  Json::Value json;
  json["seconds"] = round.seconds;
  json["used"] = round.used;
  json["waited_for_loads"] = round.waited_for_loads;
  json["waited_for_room"] = round.waited_for_room;
  json["waited_for_update"] = round.waited_for_update;
  json["update"] = round.update;
  json["update_used"] = round.update_used;
  json["disks"] = Json::arrayValue;
  for (const auto& [read, written, busy] : round.disks) {
    Json::Value disk;
    disk["read"] = Json::UInt64{read.value()};
    disk["written"] = Json::UInt64{written.value()};
    disk["busy"] = busy;
    json["disks"].append(disk);
  }
  json["read"] = Json::UInt64{round.read.value()};
  json["written"] = Json::UInt64{round.written.value()};
  return json;
}

}  // namespace

std::string time_text(double seconds) {
  return seconds != 0 && seconds < 0.1 ? fmt::format("{:.3f} ms", seconds * 1e3)
                                       : fmt::format("{:.3f} s", seconds);
}

void print_report(const SimulatedCase& simulated) {
  const auto& [title, trace, machine, settings, simulation, operations, tokens] = simulated;
  ByteCount total;
  for (const auto& tensor : trace.tensors) total += tensor.size;
  fmt::print("{}: {} uses of {} tensors, {}; host budget {}, {}, lookahead {}\n\n", title, trace.uses.size(),
             trace.tensors.size(), to_string(total), to_string(settings.host_budget),
             to_string(settings.eviction), to_string(settings.lookahead));
  const ReplayedRound &first = simulation.first, &steady = simulation.steady;
  fmt::print("{:<18} {:>12} {:>12}\n", "", "first step", name_of_steps(simulation));
  const auto print_seconds = [&](const std::string& what, double of_first, double of_steady) {
    fmt::print("{:<18} {:>12} {:>12}  {}\n", what, time_text(of_first), time_text(of_steady),
               share_of(of_steady, steady.seconds));
  };
  const auto seconds = [&](const char* what, double ReplayedRound::*member) {
    print_seconds(what, first.*member, steady.*member);
  };
  seconds("time", &ReplayedRound::seconds);
  seconds("  uses", &ReplayedRound::used);
  seconds("  waits for loads", &ReplayedRound::waited_for_loads);
  seconds("  waits for room", &ReplayedRound::waited_for_room);
  if (settings.update_beside) {
    seconds("  waits for update", &ReplayedRound::waited_for_update);
    seconds("update beside", &ReplayedRound::update);
  }
  for (std::size_t i = 0; i < steady.disks.size(); ++i)
    print_seconds(name_of_disk(i, steady.disks.size()) + " busy", first.disks[i].busy, steady.disks[i].busy);
  fmt::print("{:<18} {:>12} {:>12}\n", "read", to_string(first.read), to_string(steady.read));
  fmt::print("{:<18} {:>12} {:>12}\n", "written", to_string(first.written), to_string(steady.written));
  if (simulation.steps > 1 && !simulation.settled)
    fmt::print("\nthe steps have not settled: later ones may differ by more than a percent\n");
  if (const Limit limit = limit_of(simulated); limit.seconds > 0) {
    fmt::print("\nlimiting resource: {}, busy for {} of a step\n", limit.what,
               share_of(limit.seconds, steady.seconds));
  }
  if (operations > 0) {
    fmt::print("\n{:.0f} tokens/s, {:.3g} TFLOPS a rank\n", static_cast<double>(tokens) / steady.seconds,
               operations / steady.seconds / 1e12);
  }
  if (const auto least = endurance_of(simulation, machine)) {
    fmt::print("\nthe endurance of {}, {}, is {:.3g} such steps, {:.1f} days\n",
               (machine.costs.disks.size() == 1 ? "the " : "") +
                   name_of_disk(least->disk, machine.costs.disks.size()),
               to_string(machine.costs.disks[least->disk].endurance), least->steps,
               least->steps * steady.seconds / 86400);
  }
  fmt::print("\n{}\n",
             simulation.changes.empty() ? "no change that was tried shortens the step" : "what would help");
  for (const Simulation::Change& change : simulation.changes) {
    fmt::print("  {:<38} {:>12}  {:+.0f} %\n", change.what, time_text(change.seconds),
               100 * (change.seconds / steady.seconds - 1));
  }
}

Json::Value to_json(const SimulatedCase& simulated) {
  const Simulation& simulation = simulated.simulation;
  Json::Value json;
  if (simulated.operations > 0) {
    json["tokens_per_second"] = static_cast<double>(simulated.tokens) / simulation.steady.seconds;
    json["tflops_per_rank"] = simulated.operations / simulation.steady.seconds / 1e12;
  }
  json["eviction"] = std::string(to_string(simulated.settings.eviction));
  json["first"] = to_json(simulation.first);
  json["steady"] = to_json(simulation.steady);
  json["steps"] = simulation.steps;
  json["steady_from"] = simulation.steady_from();
  json["settled"] = simulation.settled;
  const Limit limit = limit_of(simulated);
  json["limiting_resource"]["what"] = limit.what;
  json["limiting_resource"]["busy"] = limit.seconds;
  if (const auto least = endurance_of(simulation, simulated.machine))
    json["steps_of_endurance"] = least->steps;
  json["changes"] = Json::arrayValue;
  for (const Simulation::Change& change : simulation.changes) {
    Json::Value one;
    one["what"] = change.what;
    one["seconds"] = change.seconds;
    json["changes"].append(one);
  }
  return json;
}

}  // namespace penstock::tool
