#pragma once

#include "command.hpp"
#include "zero/estimate/config_search.hpp"
#include "zero/estimate/named_model.hpp"
#include "zero/simulate/timed_config.hpp"

#include <penstock/zero/config/config_file.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tool {

/// The command line of `penstock estimate`, as typed.
struct EstimateOptions {
  // The model: by sizes, or by a layout.
  std::string params, largest_layer;
  std::optional<std::string> model;
  bool presets = false;
  // Its activations.
  std::uint64_t tokens = 0;                  ///< of a micro-batch of a rank; 0: not given
  std::optional<std::string> memory_device;  ///< of a device, for all that is on it
  std::uint64_t experts_per_token = 0;       ///< 0: not given
  // The run.
  std::uint32_t gpus_per_node = 1, nodes = 1, micro_batches = 1;
  std::optional<std::string> config;
  bool lenient = false;  ///< see zero::ConfigFile::Options
  std::string offload_param = "nvme", offload_optimizer = "nvme", dtype = "bf16", state_format = "fp32",
              device_memory = "separate";
  std::vector<std::filesystem::path> paths;
  // What is printed.
  std::string format = "penstock", factor = "1.5";
  std::optional<std::string> drive_endurance;
  std::uint32_t stage = 3;  ///< of DeepSpeed's table
  bool json = false;
  // The search.
  std::optional<std::string> budget_host, budget_device;
  bool lossy = false;
  std::optional<std::string> machine;  ///< the file that describes it: what is printed is timed

  [[nodiscard]] bool searches() const { return budget_host || budget_device; }
};

/// Adds the options to the command.
void add_estimate_options(measure::CommandLine& command, EstimateOptions& options);

/// Checks what the parsing does not: that the model is given once, and that options are not combined that do not apply
/// together. Throws as measure::fail_required() does.
void check_estimate_options(const measure::CommandLine& command, const EstimateOptions& options);

[[nodiscard]] zero::OffloadDevice offload_device_of(const std::string& name);
[[nodiscard]] cpu_adam::StateFormat state_format_of(const std::string& name);
[[nodiscard]] zero::estimate::RunShape run_of(const EstimateOptions& options);

/// The file of --config.
[[nodiscard]] Result<zero::ConfigFile> read_config(const EstimateOptions& options);
/// The configuration for a model: that of --config, or one with stage 3 and what the options say, without origins.
/// `--path` replaces the directories; without any, one with the name of placeholder_path() stands for them.
[[nodiscard]] Result<zero::ConfigFile> config_of(const EstimateOptions& options);
[[nodiscard]] std::filesystem::path placeholder_path();

/// The machine of --machine, and what a run on it needs beside a configuration. Without directories placeholders stand
/// for them, one for each disk: both blocks of `config` have as many. The model's notes get what is assumed of
/// it.
///
/// Errors: those of MachineFile::read() and check_timed_run(); invalid_argument, for --memory-device of a model whose
/// shapes are not known.
[[nodiscard]] Result<zero::simulate::TimedRun> timed_run_of(const EstimateOptions& options,
                                                            zero::Config& config,
                                                            zero::estimate::NamedModel& model);

/// Terabytes above 0, as bytes. Errors: invalid_argument.
[[nodiscard]] Result<double> parse_endurance(const std::string& text);

// The forms of the command.
[[nodiscard]] ExitStatus estimate_sizes(const EstimateOptions& options);
[[nodiscard]] ExitStatus estimate_model(const EstimateOptions& options);
[[nodiscard]] ExitStatus search_config(const EstimateOptions& options);
[[nodiscard]] ExitStatus list_presets(bool as_json);

/// DeepSpeed's table for `stage`, or its rows as JSON.
[[nodiscard]] ExitStatus print_deepspeed(const EstimateOptions& options,
                                         const zero::DeepSpeedEstimateOptions& sizes);
/// --factor. Errors: invalid_argument.
Result<void> take_factor(const std::string& text, zero::DeepSpeedEstimateOptions& options);

/// What refuses --stage 2 where it has no meaning.
[[nodiscard]] Error only_stage_3();

/// A JSON number if readers can represent it exactly, else a string.
[[nodiscard]] Json::Value json_number(zero::WideByteCount bytes);
[[nodiscard]] inline Json::Value json_number(ByteCount bytes) {
  return Json::UInt64(bytes.value());
}
[[nodiscard]] inline Json::Value json_string(std::string_view value) {
  return Json::Value(value.data(), value.data() + value.size());
}

}  // namespace penstock::tool
