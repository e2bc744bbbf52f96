#include "command.hpp"
#include "zero/simulate/simulation.hpp"

#include <filesystem>
#include <map>
#include <memory>
#include <string>

namespace penstock::tool {

namespace {

using swap::ReplayedRound;
using zero::simulate::Machine;
using zero::simulate::Simulation;
using zero::simulate::SimulationOptions;

constexpr const char* operation = "simulate";

const std::map<std::string, swap::Eviction> evictions = {
    {"planned", swap::Eviction::planned},
    {"lru", swap::Eviction::lru},
    {"reuse_distance", swap::Eviction::reuse_distance},
};

struct SimulateOptions {
  std::filesystem::path trace, machine;
  std::string host_budget, lookahead = "64 MiB", reuse_distance_max, eviction = "planned";
  std::uint32_t steps = 4;
  bool as_json = false;
};

Result<SimulationOptions> settings_of(const SimulateOptions& options) {
  SimulationOptions settings{
      .host_budget = {}, .eviction = evictions.at(options.eviction), .steps = options.steps};
  PENSTOCK_TRY_ASSIGN(settings.host_budget, parse_size(operation, "--host-budget", options.host_budget));
  if (options.lookahead != "0") {
    PENSTOCK_TRY_ASSIGN(settings.lookahead, parse_size(operation, "--lookahead", options.lookahead));
  }
  const bool has_distance = !options.reuse_distance_max.empty();
  if (has_distance != (settings.eviction == swap::Eviction::reuse_distance)) {
    return Error::invalid_argument(operation)
        .object("--reuse-distance-max")
        .reason("it is given exactly with --eviction reuse_distance")
        .got(options.reuse_distance_max.empty() ? "none" : options.reuse_distance_max);
  }
  if (has_distance) {
    PENSTOCK_TRY_ASSIGN(settings.reuse_distance_max,
                        parse_size(operation, "--reuse-distance-max", options.reuse_distance_max));
  }
  return settings;
}

std::string share_of(double part, double whole) {
  return whole > 0 ? fmt::format("{:.0f} %", 100 * part / whole) : "";
}

void print_report(const Simulation& simulation, const Machine& machine, const swap::AccessTrace& trace,
                  const SimulateOptions& options) {
  ByteCount total;
  for (const auto& tensor : trace.tensors) total += tensor.size;
  fmt::print("trace {}: {} uses of {} tensors, {}; host budget {}, {}, lookahead {}\n\n", trace.label,
             trace.uses.size(), trace.tensors.size(), to_string(total), options.host_budget, options.eviction,
             options.lookahead);
  const ReplayedRound &first = simulation.first, &steady = simulation.steady;
  fmt::print("{:<18} {:>12} {:>12}\n", "", "first step", fmt::format("step {}", options.steps));
  const auto seconds = [&](const char* what, double ReplayedRound::*member) {
    fmt::print("{:<18} {:>10.3f} s {:>10.3f} s  {}\n", what, first.*member, steady.*member,
               share_of(steady.*member, steady.seconds));
  };
  seconds("time", &ReplayedRound::seconds);
  seconds("  uses", &ReplayedRound::used);
  seconds("  waits for loads", &ReplayedRound::waited_for_loads);
  seconds("  waits for room", &ReplayedRound::waited_for_room);
  seconds("disk busy", &ReplayedRound::disk_busy);
  fmt::print("{:<18} {:>12} {:>12}\n", "read", to_string(first.read), to_string(steady.read));
  fmt::print("{:<18} {:>12} {:>12}\n", "written", to_string(first.written), to_string(steady.written));
  if (const double steps = steps_of_endurance(simulation, machine); steps > 0) {
    fmt::print("\nthe disk's endurance of {} is {:.3g} such steps, {:.1f} days\n",
               to_string(machine.endurance), steps, steps * steady.seconds / 86400);
  }
  fmt::print("\n{}\n",
             simulation.changes.empty() ? "no change that was tried shortens the step" : "what would help");
  for (const Simulation::Change& change : simulation.changes) {
    fmt::print("  {:<34} {:>10.3f} s  {:+.0f} %\n", change.what, change.seconds,
               100 * (change.seconds / steady.seconds - 1));
  }
}

Json::Value to_json(const ReplayedRound& round) {
  Json::Value json;
  json["seconds"] = round.seconds;
  json["used"] = round.used;
  json["waited_for_loads"] = round.waited_for_loads;
  json["waited_for_room"] = round.waited_for_room;
  json["disk_busy"] = round.disk_busy;
  json["read"] = Json::UInt64{round.read.value()};
  json["written"] = Json::UInt64{round.written.value()};
  return json;
}

Json::Value to_json(const Simulation& simulation, const Machine& machine) {
  Json::Value json;
  json["first"] = to_json(simulation.first);
  json["steady"] = to_json(simulation.steady);
  if (const double steps = steps_of_endurance(simulation, machine); steps > 0)
    json["steps_of_endurance"] = steps;
  json["changes"] = Json::arrayValue;
  for (const Simulation::Change& change : simulation.changes) {
    Json::Value one;
    one["what"] = change.what;
    one["seconds"] = change.seconds;
    json["changes"].append(one);
  }
  return json;
}

Result<void> run(const SimulateOptions& options) {
  PENSTOCK_TRY_ASSIGN(const SimulationOptions settings, settings_of(options));
  PENSTOCK_TRY_ASSIGN(const swap::AccessTrace trace, swap::load_trace(options.trace));
  PENSTOCK_TRY_ASSIGN(const Machine machine, zero::simulate::MachineFile::read(options.machine));
  PENSTOCK_TRY_ASSIGN(const Simulation simulation, simulate(trace, machine, settings));
  if (options.as_json)
    print_json(to_json(simulation, machine));
  else
    print_report(simulation, machine, trace, options);
  return ok();
}

}  // namespace

void add_simulate_command(CLI::App& app, ExitStatus& status) {
  auto options = std::make_shared<SimulateOptions>();
  CLI::App* command = app.add_subcommand(
      "simulate",
      "Predict the time, the waits and the bytes of the steps of a trace on a machine that is described");
  command->add_option("trace", options->trace, "A trace of swap::save_trace()")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--machine", options->machine,
                   "The rates of its disk and of the uses, see docs/simulation.md")
      ->required()
      ->type_name("FILE");
  command->add_option("--host-budget", options->host_budget, "Host memory for tensors")
      ->required()
      ->type_name("SIZE");
  command->add_option("--eviction", options->eviction, "The policy: planned, lru or reuse_distance")
      ->check(CLI::IsMember(evictions))
      ->capture_default_str();
  command->add_option("--reuse-distance-max", options->reuse_distance_max, "For reuse_distance")
      ->type_name("SIZE");
  command
      ->add_option("--lookahead", options->lookahead,
                   "Most bytes that are loaded before their use is asked for")
      ->type_name("SIZE")
      ->capture_default_str();
  command->add_option("--steps", options->steps, "How many; the last one stands for all that follow")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  command->add_flag("--json", options->as_json, "Print JSON");
  command->callback([options, &status] {
    const auto outcome = run(*options);
    status = outcome ? done : fail(outcome.error());
  });
}

}  // namespace penstock::tool
