#include "estimate/arguments.hpp"

#include "measure/command_line.hpp"
#include "zero/config/rules.hpp"
#include "zero/config/value.hpp"

#include <charconv>
#include <iterator>
#include <limits>

namespace penstock::tool {

namespace {

constexpr const char* operation = "penstock estimate";
const std::vector<std::string> tiers_of_offload = {"none", "cpu", "nvme"};
/// Options of which a configuration has keys, and which a search chooses.
constexpr const char* of_config[] = {"--offload-param", "--offload-optimizer", "--dtype", "--micro-batches",
                                     "--state-format"};
constexpr const char* of_search_choice[] = {"--offload-param", "--offload-optimizer", "--state-format"};

void add_model_options(measure::CommandLine& command, EstimateOptions& o) {
  command
      .add_option(
          "--model", o.model,
          "The model: a preset, a .safetensors file, its index, the directory of either, or a layout file")
      .type_name("NAME|FILE");
  command.add_flag("--presets", o.presets, "List the presets, and end");
  command.add_option("--params", o.params, "Instead of --model: parameters of the model").type_name("N");
  command
      .add_option("--largest-layer", o.largest_layer,
                  "With --params: parameters of its largest layer; required, except for DeepSpeed's stage 2")
      .type_name("N");
}

void add_run_options(measure::CommandLine& command, EstimateOptions& o) {
  const measure::CommandOption tokens =
      command
          .add_option(
              "--tokens", o.tokens,
              "Tokens of a micro-batch of a rank: of a preset, print their activations; with --machine, "
              "time their step")
          .range(std::uint64_t{1}, std::uint64_t{1} << 32)
          .type_name("N");
  command
      .add_option("--memory-device", o.memory_device,
                  "With --tokens: memory of a device, such as 80GiB; print which blocks repeat their forward")
      .needs(tokens)
      .type_name("BYTES");
  command
      .add_option(
          "--experts-per-token", o.experts_per_token,
          "With --machine, of a model with experts: how many of each layer compute a token; a preset has its "
          "own number")
      .range(std::uint64_t{1}, std::uint64_t{65535})
      .type_name("N");
  command.add_option("--gpus", o.gpus_per_node, "GPUs per node, one rank each")
      .range(1u, 65535u)
      .show_default();
  command.add_option("--nodes", o.nodes, "Nodes").range(1u, 65535u).show_default();
  command
      .add_option("--offload-param", o.offload_param,
                  "Tier of the parameter shards; none: the device if --offload-optimizer is none too, else "
                  "host memory")
      .one_of(tiers_of_offload)
      .show_default();
  command
      .add_option("--offload-optimizer", o.offload_optimizer,
                  "Tier of the optimizer states; none: the device")
      .one_of(tiers_of_offload)
      .show_default();
  command.add_option("--dtype", o.dtype, "Type of parameters and gradients")
      .one_of({"bf16", "fp16", "fp32"})
      .show_default();
  command.add_option("--micro-batches", o.micro_batches, "Micro-batches of a step")
      .range(1u, 65535u)
      .show_default();
  command.add_option("--state-format", o.state_format, "Format of masters and moments")
      .one_of({"fp32", "split", "split_bf16", "split_q8", "moments", "moments_bf16"})
      .show_default();
  measure::CommandOption config =
      command
          .add_option("--config", o.config,
                      "Read the five options above, and all else that matters, from a "
                      "ds_config.json; with a budget, what it gives is kept")
          .type_name("FILE");
  for (const char* name : of_config) config.excludes(name);
  command.add_flag("--lenient", o.lenient, "With --config: as of config check").needs(config);
  command
      .add_option(
          "--path", o.paths,
          "With --model: directory of swap files; repeat it for several drives, with --machine for each "
          "disk of it in its order")
      .type_name("DIR");
  command
      .add_option("--device-memory", o.device_memory,
                  "With --model: separate, as of a GPU, or host, for a run on the CPU")
      .one_of({"separate", "host"})
      .show_default();
}

void add_output_options(measure::CommandLine& command, EstimateOptions& o) {
  command
      .add_option("--drive-endurance", o.drive_endurance,
                  "With --model: rated endurance of each drive in terabytes written (TBW)")
      .type_name("TB");
  command.add_option("--format", o.format, "deepspeed: print only DeepSpeed's own table")
      .one_of({"penstock", "deepspeed"})
      .show_default();
  command.add_option("--stage", o.stage, "ZeRO stage of DeepSpeed's table").one_of({2u, 3u}).show_default();
  command.add_option("--factor", o.factor, "DeepSpeed's additional_buffer_factor").show_default();
  command.add_flag("--json", o.json, "Print JSON");
}

void add_search_options(measure::CommandLine& command, EstimateOptions& o) {
  for (const auto& [name, text, help] :
       {std::tuple(
            "--budget-host", &o.budget_host,
            "With --model: print the cheapest configuration whose ranks need at most so much host memory of "
            "a node, such as 64GiB"),
        {"--budget-device", &o.budget_device,
         "With --model: print the cheapest configuration that needs at most so much memory of each "
         "device"}}) {
    measure::CommandOption option = command.add_option(name, *text, help).type_name("BYTES");
    for (const char* chosen : of_search_choice) option.excludes(chosen);
    option.excludes("--drive-endurance");
  }
  command.add_flag("--lossy", o.lossy, "With a budget: also state formats that round the moments");
  command
      .add_option(
          "--machine", o.machine,
          "With --model and --tokens: a machine file, see docs/simulation.md. Print simulated seconds of a "
          "step; with a budget, find the configuration whose step takes fewest")
      .type_name("FILE");
}

/// Throws, if an option was given that does not apply.
void refuse(const measure::CommandLine& command, std::initializer_list<const char*> names,
            const std::string& where) {
  for (const char* name : names) {
    if (command.count(name) > 0) measure::fail_excludes(name, where);
  }
}

/// Directories for the swap files, if any are known.
std::vector<std::filesystem::path> known_paths(const EstimateOptions& options, const zero::Config& config) {
  if (!options.paths.empty()) return options.paths;
  const auto& of_parameters = config.offload_param.nvme_paths;
  return of_parameters.empty() ? config.offload_optimizer.nvme_paths : of_parameters;
}

Result<zero::Config> default_config(const EstimateOptions& options) {
  zero::Config config;
  const std::uint64_t batch = std::uint64_t{options.micro_batches} * run_of(options).ranks();
  if (batch > std::numeric_limits<std::uint32_t>::max()) {
    return Error::invalid_argument(operation)
        .object("--gpus x --nodes x --micro-batches")
        .wanted("a batch of at most 4294967295")
        .got(batch);
  }
  config.train_batch_size = static_cast<std::uint32_t>(batch);
  config.gradient_accumulation_steps = options.micro_batches;
  config.stage = 3;
  config.dtype = config.grad_accum_dtype = dtype_of(options.dtype);
  config.offload_param.device = offload_device_of(options.offload_param);
  config.offload_optimizer.device = offload_device_of(options.offload_optimizer);
  config.penstock.state_format = state_format_of(options.state_format);
  return config;
}

}  // namespace

void add_estimate_options(measure::CommandLine& command, EstimateOptions& options) {
  add_model_options(command, options);
  add_run_options(command, options);
  add_output_options(command, options);
  add_search_options(command, options);
}

void check_estimate_options(const measure::CommandLine& command, const EstimateOptions& options) {
  if (options.presets) return;
  const bool by_layout = command.count("--model") > 0;
  const bool by_sizes = command.count("--params") > 0;
  if (!by_layout && !by_sizes) measure::fail_required("--model or --params");
  if (by_layout) refuse(command, {"--params", "--largest-layer"}, "--model");
  if (by_sizes) {
    refuse(command,
           {"--path", "--device-memory", "--drive-endurance", "--budget-host", "--budget-device", "--lossy",
            "--tokens", "--machine"},
           "--params: it needs --model");
  }
  if (options.format == "deepspeed") {
    refuse(command, {"--drive-endurance", "--budget-host", "--budget-device", "--tokens", "--machine"},
           "--format deepspeed");
  }
  if (options.experts_per_token > 0 && !options.machine)
    measure::fail_requires("--experts-per-token", "--machine");
  if (options.machine && options.tokens == 0) measure::fail_requires("--machine", "--tokens");
  if (options.searches() && !options.machine) refuse(command, {"--tokens"}, "a budget without --machine");
  if (options.lossy && !options.searches())
    measure::fail_requires("--lossy", "--budget-host or --budget-device");
  const bool needs_layer = by_sizes && (options.format == "penstock" || options.stage == 3);
  if (needs_layer && command.count("--largest-layer") == 0) measure::fail_required("--largest-layer");
}

zero::OffloadDevice offload_device_of(const std::string& name) {
  using enum zero::OffloadDevice;
  return name == "cpu" ? cpu : name == "nvme" ? nvme : none;
}

cpu_adam::StateFormat state_format_of(const std::string& name) {
  using enum cpu_adam::StateFormat;
  for (const cpu_adam::StateFormat format : {split, split_bf16, split_q8, moments, moments_bf16}) {
    if (name == to_string(format)) return format;
  }
  return fp32;
}

zero::estimate::RunShape run_of(const EstimateOptions& options) {
  return {.ranks_per_node = options.gpus_per_node,
          .nodes = options.nodes,
          .device_memory =
              options.device_memory == "host" ? tiers::DeviceMemory::host : tiers::DeviceMemory::separate};
}

std::filesystem::path placeholder_path() {
  return "DIR";
}

Result<zero::ConfigFile> read_config(const EstimateOptions& options) {
  PENSTOCK_TRY_ASSIGN(
      auto file, zero::ConfigFile::read(*options.config,
                                        {.world_size = run_of(options).ranks(), .lenient = options.lenient}));
  print_notes(file.config.notes);
  return file;
}

/// Sets the directories; the usual number of tiles in flight becomes that of these.
void set_paths(zero::Config& config, const std::vector<std::filesystem::path>& paths) {
  const bool is_usual = config.penstock.tiles_in_flight == zero::config::usual_tiles_in_flight(config);
  config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = paths;
  if (is_usual) config.penstock.tiles_in_flight = zero::config::usual_tiles_in_flight(config);
}

Result<zero::ConfigFile> config_of(const EstimateOptions& options) {
  zero::ConfigFile file;
  if (options.config) {
    PENSTOCK_TRY_ASSIGN(file, read_config(options));
  } else {
    PENSTOCK_TRY_ASSIGN(file.config, default_config(options));
  }
  std::vector<std::filesystem::path> paths = known_paths(options, file.config);
  if (paths.empty()) paths = {placeholder_path()};
  set_paths(file.config, paths);
  return file;
}

namespace {

/// What the machine file does not give takes no time and has no end, which decides where that is free.
void note_free_work(const zero::simulate::TimedRun& run) {
  const auto& device = run.machine.device;
  std::vector<std::string> notes;
  if (device.link == 0 && run.shape.ranks() > 1)
    notes.emplace_back("--machine gives no device.link: gathers between ranks take no time");
  if (device.update == 0 && run.shape.device_memory == tiers::DeviceMemory::separate)
    notes.emplace_back(
        "--machine gives no device.update: updates on the device take no time beside their copies");
  if (device.memory.is_zero() && run.shape.device_memory == tiers::DeviceMemory::separate)
    notes.emplace_back("--machine gives no device.memory: every plan fits on the device");
  print_notes(notes);
}

}  // namespace

Result<zero::simulate::TimedRun> timed_run_of(const EstimateOptions& options, zero::Config& config,
                                              zero::estimate::NamedModel& model) {
  zero::simulate::TimedRun run{.machine = {}, .shape = run_of(options), .tokens = options.tokens};
  PENSTOCK_TRY_ASSIGN(run.machine, zero::simulate::MachineFile::read(*options.machine));
  if (std::vector<std::filesystem::path> paths = config.offload_param.nvme_paths;
      paths.front() == placeholder_path()) {
    while (paths.size() < run.machine.costs.disks.size())
      paths.emplace_back(placeholder_path().string() + std::to_string(paths.size() + 1));
    set_paths(config, paths);
  }
  if (options.memory_device) {
    PENSTOCK_TRY_ASSIGN(const auto* const shape,
                        zero::estimate::find_shape(*options.model, "--memory-device"));
    PENSTOCK_TRY_ASSIGN(const ByteCount memory,
                        parse_size(operation, "--memory-device", *options.memory_device));
    run.activations = {.sizes = zero::estimate::activations_of(*shape, config.dtype, options.tokens),
                       .blocks = shape->layers,
                       .memory = memory};
  }
  PENSTOCK_TRY(check_timed_run(run, config));
  PENSTOCK_TRY_ASSIGN(run.used_by_token, model.used_by_token(options.experts_per_token));
  note_free_work(run);
  return run;
}

Result<double> parse_endurance(const std::string& text) {
  double terabytes = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, terabytes);
  if (parsed.ec == std::errc() && parsed.ptr == end && terabytes > 0 && terabytes <= 1e9)
    return terabytes * 1e12;
  return Error::invalid_argument(operation)
      .object("--drive-endurance")
      .wanted("terabytes above 0, such as 600")
      .got(text);
}

}  // namespace penstock::tool
