#include "command.hpp"
#include "measure/command_line.hpp"
#include "simulate/simulate_report.hpp"
#include "zero/estimate/activations.hpp"
#include "zero/estimate/named_model.hpp"
#include "zero/estimate/plan_estimate.hpp"
#include "zero/layout/rank_nodes.hpp"
#include "zero/simulate/in_parallel.hpp"
#include "zero/simulate/model_simulation.hpp"

#include <penstock/zero/config/config_file.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace penstock::tool {

namespace {

using zero::simulate::Machine;
using zero::simulate::MachineFile;
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
  // Instead of a trace.
  std::string model, config;
  std::uint32_t gpus = 1, nodes = 1;
  std::uint64_t tokens = 0;
  std::uint64_t experts_per_token = 0;  ///< 0: not given
  bool recompute = false, offload_activations = false;
  bool update_in_backward = false;
  std::string memory_device;
  std::string device_memory = "separate";
  std::uint32_t steps = 4, dropped_ahead = 4, stores_max = 4;
  std::optional<std::uint32_t> dropped_ahead_later;
  bool as_json = false;
};

Result<SimulationOptions> settings_of(const SimulateOptions& options) {
  SimulationOptions settings{
      .host_budget = {},
      .eviction = evictions.at(options.eviction),
      .dropped_ahead = options.dropped_ahead,
      .dropped_ahead_later = options.dropped_ahead_later.value_or(options.dropped_ahead),
      .stores_max = options.stores_max,
      .steps = options.steps};
  PENSTOCK_TRY_ASSIGN(settings.host_budget, parse_size(operation, "--host-budget", options.host_budget));
  PENSTOCK_TRY_ASSIGN(settings.lookahead, parse_size(operation, "--lookahead", options.lookahead, 0_B));
  const bool has_distance = !options.reuse_distance_max.empty();
  if (has_distance != (settings.eviction == swap::Eviction::reuse_distance)) {
    return Error::invalid_argument(operation)
        .object("--reuse-distance-max")
        .reason(has_distance ? "--eviction " + options.eviction + " takes no distance"
                             : "--eviction reuse_distance needs it")
        .wanted(has_distance ? "nothing" : "bytes, such as 64MiB")
        .got(has_distance ? options.reuse_distance_max : "nothing");
  }
  if (has_distance) {
    PENSTOCK_TRY_ASSIGN(settings.reuse_distance_max,
                        parse_size(operation, "--reuse-distance-max", options.reuse_distance_max, 0_B));
  }
  return settings;
}

Result<SimulatedCase> case_of_trace(const SimulateOptions& options) {
  SimulatedCase simulated;
  PENSTOCK_TRY_ASSIGN(simulated.settings, settings_of(options));
  PENSTOCK_TRY_ASSIGN(simulated.trace, swap::load_trace(options.trace));
  if (simulated.trace.uses.empty())
    return Error::invalid_argument(operation).object(options.trace.string()).reason("the trace has no use");
  // Of an engine, whose updates read gradients.
  simulated.settings.update_beside =
      std::any_of(simulated.trace.uses.begin(), simulated.trace.uses.end(), [&](const auto& use) {
        const bool is_gradient =
            simulated.trace.tensors[use.tensor].purpose == tiers::Purpose::gradient_shard;
        return is_gradient && use.access == swap::Access::read;
      });
  if (options.update_in_backward && !simulated.settings.update_beside) {
    return Error::invalid_argument(operation)
        .object("--update-in-backward")
        .reason("no use of the trace reads a gradient, so that none is taken for one of an update");
  }
  simulated.settings.update_in_backward = options.update_in_backward;
  simulated.title = "trace " + simulated.trace.label;
  PENSTOCK_TRY_ASSIGN(simulated.machine, MachineFile::read(options.machine));
  const ByteCount memory = simulated.machine.memory, budget = simulated.settings.host_budget;
  if (!memory.is_zero() && budget > memory) {
    return Error::invalid_argument(operation)
        .object("--host-budget")
        .where(options.machine.string())
        .reason("the machine has less host memory")
        .wanted("at most " + to_exact_string(memory))
        .got(budget);
  }
  const auto& rates = simulated.machine.costs.use;
  if (std::all_of(rates.begin(), rates.end(), [](double rate) { return rate == 0; }))
    print_notes({"the machine file gives no rate of uses: they take no time"});
  PENSTOCK_TRY_ASSIGN(simulated.simulation, simulate(simulated.trace, simulated.machine, simulated.settings));
  return simulated;
}

/// Errors: invalid_argument, for a model that is no preset, and for more memory than the device of `node` has; those of
/// the plans.
Result<zero::estimate::Recomputation> recomputation_of(const SimulateOptions& options, const Machine& node,
                                                       const zero::Config& config,
                                                       const zero::estimate::NamedModel& model,
                                                       const zero::simulate::TrainingRun& run) {
  PENSTOCK_TRY_ASSIGN(const auto* const shape, zero::estimate::find_shape(options.model, "--memory-device"));
  PENSTOCK_TRY_ASSIGN(const ByteCount memory,
                      parse_size(operation, "--memory-device", options.memory_device));
  if (!node.device.memory.is_zero() && memory > node.device.memory) {
    return Error::invalid_argument(operation)
        .object("--memory-device")
        .reason("the machine's device has less memory")
        .wanted("at most " + to_exact_string(node.device.memory))
        .got(memory);
  }
  PENSTOCK_TRY_ASSIGN(
      const auto estimate,
      zero::estimate::estimate_plan(
          config, model.layout,
          {.ranks_per_node = options.gpus, .nodes = options.nodes, .device_memory = run.device_memory}));
  return zero::estimate::plan_recomputation(
      zero::estimate::activations_of(*shape, config.dtype, options.tokens), shape->layers, memory,
      estimate.per_rank(tiers::Tier::device));
}

/// One rank of a model's training; all ranks do the same.
Result<SimulatedCase> case_of_model(const SimulateOptions& options) {
  const std::uint32_t ranks = options.gpus * options.nodes;
  PENSTOCK_TRY_ASSIGN(const Machine node, MachineFile::read(options.machine));
  const auto& rates = node.costs.use;
  if (std::any_of(rates.begin(), rates.end(), [](double rate) { return rate > 0; }))
    print_notes({"use of the machine file has no effect: a model's uses take the time of its arithmetic"});
  PENSTOCK_TRY_ASSIGN(auto model, zero::estimate::NamedModel::load(options.model));
  PENSTOCK_TRY_ASSIGN(const ElementCount used_by_token, model.used_by_token(options.experts_per_token));
  PENSTOCK_TRY_ASSIGN(auto file, zero::ConfigFile::read(options.config, {.world_size = ranks}));
  print_notes(file.config.notes);
  zero::Config& config = file.config;
  if (config.optimizer.type == cpu_adam::Optimizer::muon) PENSTOCK_TRY(model.use_muon());
  print_notes(model.notes);
  if (!options.host_budget.empty()) {
    PENSTOCK_TRY_ASSIGN(config.penstock.host_budget,
                        parse_size(operation, "--host-budget", options.host_budget));
    config.penstock.node_budgets.clear();
  }
  zero::simulate::TrainingRun run{
      .ranks = ranks,
      .ranks_per_node = options.gpus,
      .micro_batches = config.gradient_accumulation_steps,
      .tokens = options.tokens,
      .dtype = config.dtype,
      .used_by_token = used_by_token,
      .repeated_forward = options.recompute || options.offload_activations ? 1.0 : 0.0,
      .device_memory =
          options.device_memory == "host" ? tiers::DeviceMemory::host : tiers::DeviceMemory::separate};
  std::string title = fmt::format("{}, one of {} ranks", model.name, ranks);
  if (!options.memory_device.empty()) {
    PENSTOCK_TRY_ASSIGN(const auto planned, recomputation_of(options, node, config, model, run));
    run.repeated_forward = planned.repeated();
    title +=
        fmt::format(", {} of {} blocks repeat their forward", planned.blocks - planned.kept, planned.blocks);
  }
  if (options.offload_activations) {
    PENSTOCK_TRY_ASSIGN(const auto* const shape,
                        zero::estimate::find_shape(options.model, "--offload-activations"));
    model.layout.checkpoints = {
        .count = static_cast<std::uint32_t>(shape->layers),
        .size = zero::estimate::activations_of(*shape, config.dtype, options.tokens).checkpoint};
  }
  note_kept_states(config, run.device_memory);
  const std::size_t directories = config.swap_directories().size(), disks = node.costs.disks.size();
  if (directories > 0 && directories != disks)
    print_notes({fmt::format(
        "the configuration has {} swap directories and --machine {} disks: simulated are those of "
        "--machine, and without path_weights and path_limits",
        directories, disks)});
  if (zero::parts_differ(config))
    print_notes({"penstock.node_budgets: simulated is the rank of a node that has the least host memory"});
  PENSTOCK_TRY_ASSIGN(auto simulated, simulate_model(config, model.layout, node, run, options.steps,
                                                     zero::simulate::simulation_threads()));
  simulated.step.options.host_budget -= simulated.step.kept_states;  // they are on the device
  return SimulatedCase{.title = std::move(title),
                       .trace = std::move(simulated.step.trace),
                       .machine = simulated.share,
                       .settings = simulated.step.options,
                       .simulation = std::move(simulated.simulation),
                       .operations = model_operations(model.layout, run),
                       .tokens = options.tokens * run.micro_batches * ranks};
}

Result<void> run(const SimulateOptions& options) {
  PENSTOCK_TRY_ASSIGN(const SimulatedCase simulated,
                      options.model.empty() ? case_of_trace(options) : case_of_model(options));
  if (simulated.settings.eviction == swap::Eviction::reuse_distance) {
    print_notes(
        {"with reuse_distance what a run keeps depends on the time of each store: its steps read "
         "other bytes, and its report predicts none"});
  }
  if (options.as_json)
    print_json(to_json(simulated));
  else
    print_report(simulated);
  return ok();
}

}  // namespace

void add_simulate_command(measure::CommandLine& app, ExitStatus& status) {
  auto options = std::make_shared<SimulateOptions>();
  measure::CommandLine command = app.add_command(
      "simulate",
      "Predict the time, the waits and the bytes of the steps of a trace on a machine that is described");
  const measure::CommandOption trace =
      command.add_option("trace", options->trace, "A trace of swap::save_trace()").type_name("FILE");
  measure::CommandOption model =
      command
          .add_option("--model", options->model,
                      "Instead of a trace: a model as of penstock estimate, whose trace its layout gives")
          .type_name("NAME|FILE")
          .excludes(trace);
  const measure::CommandOption config =
      command.add_option("--config", options->config, "Of the model: a ds_config.json")
          .type_name("FILE")
          .needs(model);
  const measure::CommandOption tokens =
      command.add_option("--tokens", options->tokens, "Of the model: tokens of a micro-batch of a rank")
          .type_name("N")
          .needs(model)
          .range(std::uint64_t{1}, std::uint64_t{1} << 40);
  model.needs(config).needs(tokens);
  command
      .add_option(
          "--experts-per-token", options->experts_per_token,
          "Of a model with experts: how many of each layer compute a token; a preset has its own number")
      .type_name("N")
      .needs(model)
      .range(std::uint64_t{1}, std::uint64_t{65535});
  command.add_option("--gpus", options->gpus, "Of the model: GPUs per node, one rank each")
      .needs(model)
      .range(1u, 65535u)
      .show_default();
  command.add_option("--nodes", options->nodes, "Of the model: nodes")
      .needs(model)
      .range(1u, 65535u)
      .show_default();
  const measure::CommandOption recompute =
      command.add_flag("--recompute", options->recompute, "Of the model: the backward repeats the forward")
          .needs(model);
  const measure::CommandOption memory_device =
      command
          .add_option("--memory-device", options->memory_device,
                      "Of a preset: memory of a device; as many blocks repeat their forward as must")
          .type_name("SIZE")
          .needs(model)
          .excludes(recompute);
  command
      .add_flag("--offload-activations", options->offload_activations,
                "Of a preset: the backward repeats the forward of each block from its input, which the "
                "engine keeps "
                "on the device, in host memory or on NVMe")
      .needs(model)
      .excludes(recompute)
      .excludes(memory_device);
  command
      .add_option("--device-memory", options->device_memory,
                  "Of the model: separate, as of a GPU, or host, for a run on the CPU")
      .needs(model)
      .one_of({"separate", "host"})
      .show_default();
  command
      .add_option("--machine", options->machine,
                  "The rates of its disks, of the uses and of its devices, see docs/simulation.md")
      .required()
      .type_name("FILE");
  command
      .add_option(
          "--host-budget", options->host_budget,
          "Host memory for tensors, required with a trace; with --model that of a node, instead of the "
          "configuration's")
      .type_name("SIZE");
  const measure::CommandOption eviction =
      command.add_option("--eviction", options->eviction, "Of a trace: planned, lru or reuse_distance")
          .one_of(evictions)
          .show_default()
          .excludes(model);
  command.add_option("--reuse-distance-max", options->reuse_distance_max, "For reuse_distance")
      .type_name("SIZE")
      .needs(eviction);
  command
      .add_option("--lookahead", options->lookahead,
                  "Of a trace: most bytes that are loaded before their use is asked for; 0: none")
      .type_name("SIZE")
      .show_default()
      .excludes(model);
  command
      .add_option(
          "--dropped-ahead", options->dropped_ahead,
          "Of a trace: how many of the next tensors that leave memory after their use the trainer asks for, "
          "as an engine does for tiles")
      .type_name("N")
      .range(0u, 4096u)
      .show_default()
      .excludes(model);
  command
      .add_option(
          "--dropped-ahead-later", options->dropped_ahead_later,
          "Of a trace of an engine: how many of these at most while some are of units that are updated "
          "later; default: as many")
      .type_name("N")
      .range(0u, 4096u)
      .excludes(model);
  command
      .add_option("--stores-max", options->stores_max,
                  "Of a trace of an engine: while more stores are pending, its update begins no tile; "
                  "penstock.tiles_in_flight")
      .type_name("N")
      .range(0u, 4096u)
      .show_default()
      .excludes(model);
  command
      .add_flag(
          "--update-in-backward", options->update_in_backward,
          "Of a trace of penstock trace derive: as with penstock.update_in_backward, but for the tiles that "
          "an engine reads between two updates; otherwise the update follows the backward")
      .excludes(model);
  command
      .add_option("--steps", options->steps,
                  "How many at least; more are simulated, up to 64, until the mean of the later ones settles")
      .range(1u, 1000u)
      .show_default();
  command.add_flag("--json", options->as_json, "Print JSON");
  command.on_run([options, trace, model, &status] {
    if (trace.count() + model.count() == 0) measure::fail_required("a trace or --model");
    if (trace.count() > 0 && options->host_budget.empty()) measure::fail_required("--host-budget");
    const auto outcome = run(*options);
    status = outcome ? done : fail(outcome.error());
  });
}

}  // namespace penstock::tool
