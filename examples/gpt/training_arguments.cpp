#include "gpt/training_arguments.hpp"

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace gpt {

using penstock::ErrorCode;

namespace {

const ModelPreset* find_preset(const std::string& name) {
  const auto found = std::find_if(std::begin(model_presets), std::end(model_presets),
                                  [&](const ModelPreset& preset) { return preset.name == name; });
  return found == std::end(model_presets) ? nullptr : found;
}

}  // namespace

void TrainingArguments::take(const penstock::zero::Config& config_file) {
  model.unit_elements_max = config_file.penstock.unit_elements_max;
  training.micro_batches = config_file.gradient_accumulation_steps;
  training.sequences = config_file.micro_batch_size;
}

TrainingOptions::TrainingOptions(penstock::measure::CommandLine& app, TrainingArguments& arguments)
    : app_(app), arguments_(arguments) {
  // scripts/demo passes its defaults first; the user's arguments come later and must win.
  app.take_last();
  app.add_option("--config", arguments.config, "ds_config.json").show_default();
  app.add_option("--text", arguments.text, "train on this file; default: the system's licences");
  add_shape();
  app.add_option("--steps", arguments.training.steps, "optimizer steps").show_default();
  app.add_option("--seed", arguments.model.seed, "seed of the initial values and of the order of the text")
      .show_default();
  app.add_flag(
      "--checkpoint-activations", arguments.training.checkpoint_activations,
      "keep only the input of each block, and compute the rest again in its backward; the same result");
  app.add_option("--json", arguments.json, "write the figures of the report to this file");
  app.add_flag("--cuda", arguments.cuda, "use CUDA devices; default: host memory is used as the device");
}

void TrainingOptions::add_shape() {
  app_.add_option("--preset", preset_, "the model's shape, by its parameters; the next four change it")
      .check([](const std::string& name) { return find_preset(name) ? "" : "one of 30m, 124m, 1b, 7b"; });
  const auto add = [&](const char* name, std::uint32_t ModelConfig::*member, const char* help) {
    shape_.emplace_back(app_.add_option(name, arguments_.model.*member, help).show_default(), member);
  };
  add("--layers", &ModelConfig::layers, "blocks");
  add("--width", &ModelConfig::width, "model width");
  add("--heads", &ModelConfig::heads, "attention heads");
  add("--context", &ModelConfig::context, "tokens per sequence");
}

std::optional<int> TrainingOptions::parse(int argc, char** argv) {
  if (const auto status = app_.parse(argc, argv, "--help lists the options")) return status;
  if (const ModelPreset* const preset = find_preset(preset_); preset != nullptr) {
    for (const auto& [option, member] : shape_) {
      if (option.count() == 0) arguments_.model.*member = preset->model.*member;
    }
  }
  arguments_.training.data_seed = arguments_.model.seed;
  return std::nullopt;
}

int fail(const penstock::Error& error, const char* what) {
  std::fprintf(stderr, "error: %s: %s\n", what, error.message().c_str());
  return error.code() == ErrorCode::invalid_config || error.code() == ErrorCode::budget_too_small ||
                 error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::not_found
             ? 2
             : 1;
}

int stopped_by(int signal) {
  std::fprintf(stderr, "note: ended by signal %d after a whole step\n", signal);
  return 128 + signal;
}

}  // namespace gpt
