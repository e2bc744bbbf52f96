// gpt_plain: trains the GPT on plain buffers of one device, without Penstock's engine. It shows what the model, its
// arithmetic and the optimizer cost alone; compare it with one rank of gpt_train that offloads nothing.
#include "gpt/memory_bound.hpp"
#include "gpt/output_file.hpp"
#include "gpt/peak_memory.hpp"
#include "gpt/plain_trainer.hpp"
#include "gpt/step_seconds.hpp"
#include "gpt/stop_signal.hpp"
#include "gpt/training_arguments.hpp"

#include "measure/run_main.hpp"

#include <penstock/base/time.hpp>

#include <chrono>
#include <cstdio>

namespace gpt {
namespace {

using namespace penstock;  // NOLINT: an example reads better so

/// What was trained, step by step.
class PlainReport {
 public:
  explicit PlainReport(const TrainingArguments& arguments)
      : model_(arguments.model),
        training_(arguments.training),
        tokens_(double{1} * training_.micro_batches * training_.sequences * model_.context) {
    std::printf("%s parameters, %.0f tokens a step\n",
                to_string(ModelDescription(model_).element_count()).c_str(), tokens_);
    std::fflush(stdout);
  }

  void step(const PlainTrainer::Outcome& outcome, const DeviceMemoryUse& memory) {
    const TimePoint now = Clock::steady().now();
    seconds_.push_back(std::chrono::duration<double>(now - last_).count());
    last_ = now;
    outcomes_.push_back(outcome);
    memory_ = memory;
    std::printf("step %zu/%u  loss %.3f  norm %.2f  %.2f k tok/s%s\n", outcomes_.size(), training_.steps,
                outcome.loss, outcome.gradient_norm, tokens_ / seconds_.back() / 1e3,
                outcome.skipped ? "  skipped" : "");
    std::fflush(stdout);
  }

  void end() const {
    std::printf("\nmedian step %.4f s; device memory %s\n", median_step_seconds(seconds_),
                to_string(memory_.free_at_start - memory_.free_now).c_str());
  }

  /// The members that gpt_train's report has too, where they apply: docs/gpt_example.md.
  void write_json(const OutputFile& file) const {
    std::FILE* const out = file.get();
    const auto bytes = [](ByteCount count) { return static_cast<unsigned long long>(count.value()); };
    std::fprintf(out,
                 "{\"parameters\": %llu, \"ranks\": 1, \"micro_batches\": %u, \"tokens_per_step\": %.0f,\n"
                 " \"median_step_seconds\": %.6f,\n \"steps\": [",
                 static_cast<unsigned long long>(ModelDescription(model_).element_count().value()),
                 training_.micro_batches, tokens_, median_step_seconds(seconds_));
    for (std::size_t i = 0; i < outcomes_.size(); ++i) {
      std::fprintf(out, "%s\n  {\"loss\": %s, \"seconds\": %.6f, \"skipped\": %s}", i == 0 ? "" : ",",
                   json_number(outcomes_[i].loss).c_str(), seconds_[i],
                   outcomes_[i].skipped ? "true" : "false");
    }
    std::fprintf(out,
                 "],\n \"device\": {\"activation_bytes\": %llu, \"free_at_start_bytes\": %llu, "
                 "\"free_min_bytes\": %llu},\n \"peak_resident_bytes\": %llu}\n",
                 bytes(memory_.activations), bytes(memory_.free_at_start), bytes(memory_.free_now),
                 bytes(peak_resident_memory()));
  }

 private:
  const ModelConfig model_;
  const TrainingConfig training_;
  const double tokens_;
  TimePoint last_ = Clock::steady().now();
  std::vector<PlainTrainer::Outcome> outcomes_;
  std::vector<double> seconds_;
  DeviceMemoryUse memory_;  // constant from the first step on
};

/// Returns the signal that ended the training after a whole step, 0 for none.
Result<int> train(const TrainingArguments& arguments, const zero::Config& config, const Text& text,
                  PlainReport& report) {
  PENSTOCK_TRY_ASSIGN(const auto trainer,
                      PlainTrainer::create({.model = arguments.model,
                                            .training = arguments.training,
                                            .config = config,
                                            .text = &text,
                                            .make_device = arguments.cuda ? on_cuda(arguments.model)
                                                                          : on_host(arguments.model)}));
  for (std::uint32_t step = 0; step < arguments.training.steps; ++step) {
    PENSTOCK_TRY_ASSIGN(const auto outcome, trainer->step(step));
    report.step(outcome, trainer->device_memory());
    if (const int signal = stop_signal(); signal != 0) return signal;
  }
  return 0;
}

/// Refuses a training that does not fit into the machine's memory.
Result<void> check_host_memory(const TrainingArguments& arguments, const zero::Config& config) {
  if (arguments.cuda) return ok();
  const PlainMemory buffers(ModelDescription(arguments.model), config, arguments.training.micro_batches);
  return check_memory(plain_memory_bound(buffers.size(), arguments.model, arguments.training), /*ranks=*/1);
}

int run(TrainingArguments arguments) {
  arguments.training.ranks = 1;
  auto config = zero::Config::from_file(arguments.config, arguments.training.ranks);
  if (!config) return fail(config.error(), "cannot use the configuration");
  for (const std::string& note : config->notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  arguments.take(*config);
  if (auto model = arguments.model.validate(); !model) return fail(model.error(), "cannot start");
  if (config->optimizer.type != penstock::cpu_adam::Optimizer::adam) {
    return fail(penstock::Error(penstock::ErrorCode::invalid_config, "gpt_plain")
                    .object("optimizer.type")
                    .wanted("Adam or AdamW, which the device updates by")
                    .got(std::string(to_string(config->optimizer.type))),
                "cannot start");
  }
  if (auto valid = arguments.training.validate(); !valid) return fail(valid.error(), "cannot start");
  if (auto fits = check_host_memory(arguments, *config); !fits) return fail(fits.error(), "cannot start");
  auto text = Text::load(arguments.text, arguments.model.context);
  if (!text) return fail(text.error(), "cannot use the text");
  std::optional<OutputFile> json;
  if (arguments.json) {
    auto created = OutputFile::create(*arguments.json);
    if (!created) return fail(created.error(), "cannot write the report");
    json = std::move(*created);
  }

  PlainReport report(arguments);
  const auto trained = train(arguments, *config, *text, report);
  if (!trained) return fail(trained.error(), "training failed");
  report.end();
  if (json) {
    report.write_json(*json);
    if (const auto closed = json->close(); !closed) return fail(closed.error(), "cannot write the report");
  }
  return *trained != 0 ? stopped_by(*trained) : 0;
}

int main_body(int argc, char** argv) {
  TrainingArguments arguments;
  measure::CommandLine app(
      "Trains a byte-level GPT on plain buffers of one device, without Penstock's engine");
  TrainingOptions options(app, arguments);
  if (const auto status = options.parse(argc, argv)) return *status;
  note_stop_signals();
  return run(arguments);
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  return penstock::measure::run_main([&] { return gpt::main_body(argc, argv); });
}
