#pragma once

#include "gpt/model_config.hpp"

#include "measure/command_line.hpp"

#include <penstock/base/result.hpp>
#include <penstock/zero/config/config.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// What gpt_train and gpt_plain are told on the command line.
struct TrainingArguments {
  std::filesystem::path config = "examples/gpt/ds_config.json";
  std::optional<std::filesystem::path> text, json;
  ModelConfig model;
  TrainingConfig training;
  bool cuda = false;

  /// Takes what the configuration says of model and training: the limit of a unit, micro-batches and sequences.
  void take(const penstock::zero::Config& config_file);
};

/// The options for TrainingArguments.
class TrainingOptions {
 public:
  /// `arguments` outlives it.
  TrainingOptions(penstock::measure::CommandLine& app, TrainingArguments& arguments);

  /// Parses the command line into the arguments. Returns the status with which the program must exit now, if any:
  /// --help and errors are printed.
  [[nodiscard]] std::optional<int> parse(int argc, char** argv);

 private:
  void add_shape();

  penstock::measure::CommandLine& app_;
  TrainingArguments& arguments_;
  std::string preset_;
  std::vector<std::pair<penstock::measure::CommandOption, std::uint32_t ModelConfig::*>> shape_;
};

/// Prints the error of `what`. Returns the program's exit status for it: 2, if the user has to change something.
[[nodiscard]] int fail(const penstock::Error& error, const char* what);

/// The exit status of a program that a signal ended after a whole step, as a shell reports it. Prints a note.
[[nodiscard]] int stopped_by(int signal);

}  // namespace gpt
