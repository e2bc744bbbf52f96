#include "estimate/arguments.hpp"
#include "zero/estimate/estimate.hpp"

#include <penstock/zero/layout/model_layout.hpp>

#include <charconv>
#include <cmath>

namespace penstock::tool {

namespace {

/// A count on the command line: 2783000000 or 2783e6.
struct Count {
  ElementCount value;
  bool is_float = false;  ///< a float literal in Python's syntax
};

Result<Count> parse_count(const char* option, const std::string& text) {
  const char *const begin = text.data(), *const end = begin + text.size();
  std::uint64_t whole = 0;
  if (const auto parsed = std::from_chars(begin, end, whole); parsed.ptr == end && parsed.ec == std::errc()) {
    return Count{ElementCount(whole)};
  }
  double real = 0;
  const auto parsed = std::from_chars(begin, end, real);
  const bool usable = parsed.ptr == end && parsed.ec == std::errc() && real >= 0 && real < 0x1p63;
  if (!usable || std::floor(real) != real) {
    return Error::invalid_argument("penstock estimate")
        .object(option)
        .wanted("a whole number, such as 7e9")
        .got(text);
  }
  return Count{ElementCount(static_cast<std::uint64_t>(real)), true};
}

/// The inputs of both estimates.
struct Arguments {
  zero::DeepSpeedEstimateOptions deepspeed;
  zero::RunEstimateOptions run;
};

/// The estimate is of a run without limits.
void note_unused_budgets(const zero::PenstockConfig& config) {
  for (const auto& [key, budget] : {std::pair{"penstock.host_budget", config.host_budget},
                                    {"penstock.device_budget", config.device_budget}}) {
    if (budget.is_zero()) continue;
    fmt::print(stderr, "note: {}: not used by the estimate, which is of a run without that limit\n", key);
  }
  if (!config.node_budgets.empty())
    fmt::print(stderr,
               "note: penstock.node_budgets: not used by the estimate, which is of a run without it\n");
}

Result<void> take_config(const EstimateOptions& options, zero::RunEstimateOptions& run) {
  PENSTOCK_TRY_ASSIGN(const auto file, read_config(options));
  const zero::Config& config = file.config;
  if (options.format == "penstock") note_unused_budgets(config.penstock);
  run.stage = config.stage;
  run.dtype = config.dtype;
  run.grad_accum_dtype = config.grad_accum_dtype;
  run.micro_batches = config.gradient_accumulation_steps;
  run.offload_param = config.offload_param.device;
  run.offload_optimizer = config.offload_optimizer.device;
  run.state_format = config.penstock.state_format;
  run.optimizer = config.optimizer.type;
  run.tile_elements = config.penstock.tile_elements;
  run.tiles_in_flight = config.penstock.tiles_in_flight;
  run.cpu_update_ratio = config.cpu_update_ratio;
  run.update_split = config.penstock.update_split;
  run.device_states = config.penstock.device_states;
  return ok();
}

/// What estimate_run() refuses, by the names of the options.
Result<void> check_counts(const zero::RunEstimateOptions& run) {
  const auto refuse = [](const char* option) {
    return Error::invalid_argument("penstock estimate").object(option);
  };
  if (run.parameters.is_zero() || run.parameters > zero::ModelLayout::model_elements_max) {
    return refuse("--params").wanted("from 1 to 2^42").got(run.parameters.value());
  }
  if (run.largest_unit.is_zero() || run.largest_unit > run.parameters) {
    return refuse("--largest-layer")
        .wanted("from 1 to " + std::to_string(run.parameters.value()) + ", the parameters of the model")
        .got(run.largest_unit.value());
  }
  return ok();
}

Result<Arguments> parse(const EstimateOptions& options) {
  PENSTOCK_TRY_ASSIGN(const auto params, parse_count("--params", options.params));
  PENSTOCK_TRY_ASSIGN(
      const auto largest,
      parse_count("--largest-layer", options.largest_layer.empty() ? "0" : options.largest_layer));

  Arguments arguments;
  auto& deepspeed = arguments.deepspeed;
  deepspeed.total_params = params.value;
  deepspeed.largest_layer_params = largest.value;
  deepspeed.gpus_per_node = options.gpus_per_node;
  deepspeed.nodes = options.nodes;
  deepspeed.params_are_floats = params.is_float;
  PENSTOCK_TRY(take_factor(options.factor, deepspeed));

  auto& run = arguments.run;
  run.parameters = params.value;
  run.largest_unit = largest.value;
  run.ranks_per_node = options.gpus_per_node;
  run.nodes = options.nodes;
  run.dtype = run.grad_accum_dtype = dtype_of(options.dtype);
  run.micro_batches = options.micro_batches;
  run.offload_param = offload_device_of(options.offload_param);
  run.offload_optimizer = offload_device_of(options.offload_optimizer);
  run.state_format = state_format_of(options.state_format);
  if (options.config) PENSTOCK_TRY(take_config(options, run));
  return arguments;
}

Json::Value to_json(const zero::RunEstimate& estimate) {
  Json::Value json;
  json["lines"] = Json::arrayValue;
  for (const auto& line : estimate.lines) {
    Json::Value entry;
    entry["tier"] = json_string(to_string(line.tier));
    entry["purpose"] = json_string(to_string(line.purpose));
    entry["per_rank_bytes"] = json_number(line.per_rank);
    entry["per_node_bytes"] = json_number(line.per_node);
    json["lines"].append(entry);
  }
  for (const tiers::Tier tier : {tiers::Tier::device, tiers::Tier::host, tiers::Tier::nvme}) {
    json["per_node_bytes"][std::string(to_string(tier))] = json_number(estimate.per_node(tier));
  }
  json["nvme_read_per_step_per_node_bytes"] = json_number(estimate.read_per_step_per_node());
  json["nvme_written_per_step_per_node_bytes"] = json_number(estimate.written_per_step_per_node());
  return json;
}

void print_table(const zero::RunEstimateOptions& run, const zero::RunEstimate& estimate) {
  fmt::print("{} parameters, largest layer {}, {} x {} ranks, {}, state {}\n\n", to_string(run.parameters),
             to_string(run.largest_unit), run.nodes, run.ranks_per_node, to_string(run.dtype),
             to_string(run.state_format));
  fmt::print("{:<8}{:<18}{:>12}{:>12}\n", "tier", "purpose", "per rank", "per node");
  for (const tiers::Tier tier : {tiers::Tier::device, tiers::Tier::host, tiers::Tier::nvme}) {
    for (const auto& line : estimate.lines) {
      if (line.tier != tier) continue;
      fmt::print("{:<8}{:<18}{:>12}{:>12}\n", to_string(tier), to_string(line.purpose),
                 to_string(line.per_rank), to_string(line.per_node));
    }
    fmt::print("{:<8}{:<18}{:>12}{:>12}\n", to_string(tier), "total", to_string(estimate.per_rank(tier)),
               to_string(estimate.per_node(tier)));
  }
  fmt::print("\nnvme traffic of a step, per node: at most {} read, {} written (wear)\n",
             to_string(estimate.read_per_step_per_node()), to_string(estimate.written_per_step_per_node()));
  fmt::print("activations and the trainer's own memory are not counted\n");
}

}  // namespace

ExitStatus estimate_sizes(const EstimateOptions& options) {
  const auto arguments = parse(options);
  if (!arguments) return fail(arguments.error());
  if (options.format == "deepspeed") return print_deepspeed(options, arguments->deepspeed);
  if (options.stage != 3) return fail(only_stage_3());
  if (const auto counts = check_counts(arguments->run); !counts) return fail(counts.error());
  const auto run = zero::estimate_run(arguments->run);
  if (!run) return fail(run.error());
  if (options.json)
    print_json(to_json(*run));
  else
    print_table(arguments->run, *run);
  return done;
}

}  // namespace penstock::tool
