#include "zero/estimate/estimate.hpp"

#include <penstock/zero/layout/model_layout.hpp>

#include "command.hpp"

#include <charconv>
#include <cmath>
#include <memory>
#include <optional>

namespace penstock::tool {

namespace {

using zero::OffloadDevice;

struct EstimateOptions {
  std::string params, largest_layer, factor = "1.5", format = "penstock", config;
  std::uint32_t gpus_per_node = 1, nodes = 1, stage = 3;
  std::string offload_param = "nvme", offload_optimizer = "nvme", dtype = "bf16";
  std::uint32_t micro_batches = 1;
  bool json = false;
};

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

OffloadDevice device_of(const std::string& name) {
  return name == "cpu" ? OffloadDevice::cpu : name == "nvme" ? OffloadDevice::nvme : OffloadDevice::none;
}

DType dtype_of(const std::string& name) {
  return name == "fp32" ? DType::fp32 : name == "fp16" ? DType::fp16 : DType::bf16;
}

/// The estimate is of a run without limits.
void note_unused_budgets(const zero::PenstockConfig& config) {
  for (const auto& [key, budget] : {std::pair{"penstock.host_budget", config.host_budget},
                                    {"penstock.device_budget", config.device_budget}}) {
    if (budget.is_zero()) continue;
    fmt::print(stderr, "note: {}: not used by the estimate, which is of a run without that limit\n", key);
  }
}

Result<void> take_config(const EstimateOptions& options, zero::RunEstimateOptions& run) {
  PENSTOCK_TRY_ASSIGN(const auto config,
                      zero::Config::from_file(options.config, options.gpus_per_node * options.nodes));
  if (options.format == "penstock") note_unused_budgets(config.penstock);
  run.stage = config.stage;
  run.dtype = config.dtype;
  run.grad_accum_dtype = config.grad_accum_dtype;
  run.micro_batches = config.gradient_accumulation_steps;
  run.offload_param = config.offload_param.device;
  run.offload_optimizer = config.offload_optimizer.device;
  run.state_format = config.penstock.state_format;
  run.tile_elements = config.penstock.tile_elements;
  run.tiles_in_flight = config.penstock.tiles_in_flight;
  run.cpu_update_ratio = config.cpu_update_ratio;
  run.update_split = config.penstock.update_split;
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
  const auto factor_whole = parse_count("--factor", options.factor);

  Arguments arguments;
  auto& deepspeed = arguments.deepspeed;
  deepspeed.total_params = params.value;
  deepspeed.largest_layer_params = largest.value;
  deepspeed.gpus_per_node = options.gpus_per_node;
  deepspeed.nodes = options.nodes;
  deepspeed.params_are_floats = params.is_float;
  deepspeed.factor_is_integer = factor_whole && !factor_whole->is_float;
  const char* const end = options.factor.data() + options.factor.size();
  if (const auto parsed = std::from_chars(options.factor.data(), end, deepspeed.additional_buffer_factor);
      parsed.ptr != end || parsed.ec != std::errc() ||
      !(deepspeed.additional_buffer_factor >= 0 && deepspeed.additional_buffer_factor <= 1e6)) {
    return Error::invalid_argument("penstock estimate")
        .object("--factor")
        .wanted("a number from 0 to 1000000")
        .got(options.factor);
  }

  auto& run = arguments.run;
  run.parameters = params.value;
  run.largest_unit = largest.value;
  run.ranks_per_node = options.gpus_per_node;
  run.nodes = options.nodes;
  run.dtype = run.grad_accum_dtype = dtype_of(options.dtype);
  run.micro_batches = options.micro_batches;
  run.offload_param = device_of(options.offload_param);
  run.offload_optimizer = device_of(options.offload_optimizer);
  if (!options.config.empty()) PENSTOCK_TRY(take_config(options, run));
  return arguments;
}

Json::Value number(ByteCount bytes) {
  return Json::UInt64(bytes.value());
}

/// A JSON number if readers can represent it exactly, else a string.
Json::Value number(zero::WideByteCount bytes) {
  if (bytes <= ~std::uint64_t{0}) return Json::UInt64(static_cast<std::uint64_t>(bytes));
  return zero::to_decimal(bytes);
}

Json::Value text(std::string_view value) {
  return Json::Value(value.data(), value.data() + value.size());
}

Json::Value to_json(const std::vector<zero::DeepSpeedEstimateRow>& rows, std::uint32_t stage) {
  Json::Value json(Json::arrayValue);
  for (const auto& row : rows) {
    Json::Value entry;
    if (stage == 3) entry["offload_param"] = text(to_string(row.offload_param));
    entry["offload_optimizer"] = text(to_string(row.offload_optimizer));
    if (stage == 3) entry["zero_init"] = row.zero_init ? 1 : 0;
    entry["cpu_bytes"] = number(row.cpu_bytes);
    entry["gpu_bytes"] = number(row.gpu_bytes);
    json.append(entry);
  }
  return json;
}

Json::Value to_json(const zero::RunEstimate& estimate) {
  Json::Value json;
  json["lines"] = Json::arrayValue;
  for (const auto& line : estimate.lines) {
    Json::Value entry;
    entry["tier"] = text(to_string(line.tier));
    entry["purpose"] = text(to_string(line.purpose));
    entry["per_rank_bytes"] = number(line.per_rank);
    entry["per_node_bytes"] = number(line.per_node);
    json["lines"].append(entry);
  }
  for (const tiers::Tier tier : {tiers::Tier::device, tiers::Tier::host, tiers::Tier::nvme}) {
    json["per_node_bytes"][std::string(to_string(tier))] = number(estimate.per_node(tier));
  }
  json["nvme_read_per_step_per_node_bytes"] = number(estimate.read_per_step_per_node());
  json["nvme_written_per_step_per_node_bytes"] = number(estimate.written_per_step_per_node());
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

ExitStatus estimate(const EstimateOptions& options) {
  const auto arguments = parse(options);
  if (!arguments) return fail(arguments.error());

  if (options.format == "deepspeed") {
    if (options.json) {
      const auto rows = zero::deepspeed_estimate(options.stage, arguments->deepspeed);
      if (!rows) return fail(rows.error());
      print_json(to_json(*rows, options.stage));
      return done;
    }
    const auto table = zero::deepspeed_estimate_table(options.stage, arguments->deepspeed);
    if (!table) return fail(table.error());
    fmt::print("{}", *table);
    return done;
  }

  if (options.stage != 3) {
    return fail(Error::unsupported("penstock estimate")
                    .object("--stage 2")
                    .reason("only stage 3 is supported")
                    .advice("--format deepspeed prints DeepSpeed's estimate for stage 2"));
  }
  if (const auto counts = check_counts(arguments->run); !counts) return fail(counts.error());
  const auto run = zero::estimate_run(arguments->run);
  if (!run) return fail(run.error());
  if (options.json)
    print_json(to_json(*run));
  else
    print_table(arguments->run, *run);
  return done;
}

}  // namespace

void add_estimate_command(CLI::App& app, ExitStatus& status) {
  auto options = std::make_shared<EstimateOptions>();
  EstimateOptions& o = *options;
  CLI::App* command =
      app.add_subcommand("estimate", "Estimate the memory, the disk space and the disk wear of a run");
  command->add_option("--params", o.params, "Parameters of the model")->required()->type_name("N");
  CLI::Option* largest =
      command
          ->add_option("--largest-layer", o.largest_layer,
                       "Parameters of its largest layer; required, except for DeepSpeed's stage 2")
          ->type_name("N");
  command->add_option("--gpus", o.gpus_per_node, "GPUs per node, one rank each")
      ->check(CLI::Range(1u, 65535u))
      ->capture_default_str();
  command->add_option("--nodes", o.nodes, "Nodes")->check(CLI::Range(1u, 65535u))->capture_default_str();
  command->add_option("--stage", o.stage, "ZeRO stage of DeepSpeed's table")
      ->check(CLI::IsMember({2u, 3u}))
      ->capture_default_str();
  command->add_option("--factor", o.factor, "DeepSpeed's additional_buffer_factor")->capture_default_str();
  command
      ->add_option("--offload-param", o.offload_param,
                   "Tier of the parameter shards; none: the device if --offload-optimizer is none too, else "
                   "host memory")
      ->check(CLI::IsMember({"none", "cpu", "nvme"}))
      ->capture_default_str();
  command
      ->add_option("--offload-optimizer", o.offload_optimizer,
                   "Tier of the optimizer states; none: the device")
      ->check(CLI::IsMember({"none", "cpu", "nvme"}))
      ->capture_default_str();
  command->add_option("--dtype", o.dtype, "Type of parameters and gradients")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}))
      ->capture_default_str();
  command->add_option("--micro-batches", o.micro_batches, "Micro-batches of a step")
      ->check(CLI::Range(1u, 65535u))
      ->capture_default_str();
  command
      ->add_option("--config", o.config,
                   "Read the four options above, and the tile settings, from a ds_config.json")
      ->type_name("FILE")
      ->excludes("--offload-param", "--offload-optimizer", "--dtype", "--micro-batches");
  command->add_option("--format", o.format, "deepspeed: print only DeepSpeed's own table")
      ->check(CLI::IsMember({"penstock", "deepspeed"}))
      ->capture_default_str();
  command->add_flag("--json", o.json, "Print JSON");
  command->callback([options, largest, &status] {
    const bool needs_layer = options->format == "penstock" || options->stage == 3;
    if (needs_layer && largest->count() == 0) throw CLI::RequiredError("--largest-layer");
    status = estimate(*options);
  });
}

}  // namespace penstock::tool
