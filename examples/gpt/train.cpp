// gpt_train: trains the GPT with Penstock. ds_config.json configures where parameters, gradients and optimizer states
// are kept.
#include "gpt/disk_limit.hpp"
#include "gpt/memory_bound.hpp"
#include "gpt/rank_threads.hpp"
#include "gpt/rank_trainer.hpp"
#include "gpt/stop_signal.hpp"
#include "gpt/trace_report.hpp"
#include "gpt/training_arguments.hpp"
#include "gpt/training_report.hpp"

#include "measure/run_main.hpp"

#include <unistd.h>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace gpt {
namespace {

using namespace penstock;  // NOLINT: an example reads better so

struct Arguments : TrainingArguments {
  std::vector<std::filesystem::path> nvme_paths;
  std::optional<std::filesystem::path> trace;
  bool check = false;
};

/// The result of a training run.
struct Run {
  std::string digest;
  std::optional<Error> error;
  int signal = 0;  // ended it after a step
};

/// The error of a step, with what it cost: the example saves nothing.
Error lost(Error error, std::uint32_t step, std::uint32_t steps, std::uint32_t rank) {
  return std::move(error).note("lost    step " + std::to_string(step) + " of " + std::to_string(steps) +
                               ", on rank " + std::to_string(rank) + ", and what was trained before");
}

/// Trains with all ranks as threads of this process. Prints the report to standard output.
Run train(const Arguments& arguments, const zero::Config& config, const Text& text, const DiskLimit* limit,
          TraceReport* trace, const OutputFile* json) {
  const std::uint32_t ranks = arguments.training.ranks;
  const auto created = zero::InProcessGroup::create(ranks);
  if (!created) return {.digest = {}, .error = created.error()};
  const std::shared_ptr<zero::InProcessGroup>& group = *created;
  std::vector<std::unique_ptr<RankTrainer>> trainers(ranks);
  std::vector<StepReport> reports(ranks);
  TrainingReport report(arguments.model, arguments.training, limit, !arguments.cuda);
  std::barrier arrived(ranks);
  std::mutex mutex;
  std::atomic<bool> failed{false};
  Run run;

  const auto run_rank = [&](std::uint32_t rank) -> Result<void> {
    PENSTOCK_TRY_ASSIGN(trainers[rank],
                        RankTrainer::create({.model = arguments.model,
                                             .training = arguments.training,
                                             .config = config,
                                             .text = &text,
                                             .group = group,
                                             .rank = rank,
                                             .make_device = arguments.cuda ? on_cuda(arguments.model)
                                                                           : on_host(arguments.model),
                                             .timed = trace != nullptr}));
    if (rank == 0) {
      for (const std::string& note : trainers[0]->notes()) std::fprintf(stderr, "note: %s\n", note.c_str());
    }
    for (std::uint32_t step = 0; step < arguments.training.steps; ++step) {
      auto done = trainers[rank]->step(step);
      if (!done) return lost(std::move(done).error(), step + 1, arguments.training.steps, rank);
      for (const std::string& message : done->messages) {
        std::fprintf(stderr, "note: rank %u: %s\n", rank, message.c_str());
      }
      reports[rank] = *done;
      arrived.arrive_and_wait();
      if (rank == 0) {
        if (!failed) report.step(step, reports, trainers);
        for (std::uint32_t i = 0; trace != nullptr && !failed && i < ranks; ++i)
          trace->add(i, *trainers[i]->timeline());
        run.signal = stop_signal();  // once per step, for all ranks
      }
      arrived.arrive_and_wait();
      if (run.signal != 0) break;
    }
    PENSTOCK_TRY_ASSIGN(auto digest, trainers[rank]->digest());
    const std::lock_guard lock(mutex);
    run.digest = digest;
    return ok();
  };
  const auto ran = run_ranks(ranks, [&](std::uint32_t rank) {
    auto outcome = run_rank(rank);
    if (outcome) return;
    const std::lock_guard lock(mutex);
    // peer_failed is a consequence of another rank's error, which is the one to report.
    if (!run.error || run.error->code() == ErrorCode::peer_failed) run.error = outcome.error();
    failed = true;
    group->abort(rank, outcome.error());
    arrived.arrive_and_drop();
  });
  if (!ran) run.error = ran.error();
  if (run.error && run.error->code() == ErrorCode::deadline_exceeded && arguments.cuda) {
    // A device that makes no progress would keep the destructors of streams and buffers on it waiting for ever.
    const int status = fail(*run.error, "training failed");
    std::fflush(nullptr);
    ::_exit(status);
  }
  if (!run.error) report.end(trainers, run.digest);
  if (!run.error && json != nullptr) report.write_json(*json, trainers, run.digest);
  return run;
}

/// The plan of each rank. Refuses a run that does not fit into the machine's memory.
Result<zero::MemoryPlan> plan_run(const Arguments& arguments, const zero::Config& config) {
  const std::uint32_t ranks = arguments.training.ranks;
  const auto memory = arguments.cuda ? tiers::DeviceMemory::separate : tiers::DeviceMemory::host;
  PENSTOCK_TRY_ASSIGN(
      auto plan, plan_memory(config, layout_of(arguments.model, arguments.training), ranks, ranks, memory));
  PENSTOCK_TRY(check_memory(memory_bound(plan, arguments.model, arguments.training, !arguments.cuda), ranks));
  return plan;
}

std::vector<std::string> unit_names(const ModelConfig& model) {
  std::vector<std::string> names;
  const ModelDescription description(model);
  for (const UnitDescription& unit : description.units()) names.push_back(unit.name);
  return names;
}

int run(const Arguments& arguments) {
  auto config = zero::Config::from_file(arguments.config, arguments.training.ranks);
  if (!config) return fail(config.error(), "cannot use the configuration");
  if (!arguments.nvme_paths.empty()) {
    config->offload_param.nvme_paths = config->offload_optimizer.nvme_paths = arguments.nvme_paths;
  }
  for (const std::string& note : config->notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  if (auto paths = config->check_paths(); !paths) return fail(paths.error(), "cannot use the swap directory");
  Arguments effective = arguments;
  effective.take(*config);
  if (auto model = effective.model.validate(); !model) return fail(model.error(), "cannot start");
  if (auto valid = effective.training.validate(); !valid) return fail(valid.error(), "cannot start");
  auto plan = plan_run(effective, *config);
  if (!plan) return fail(plan.error(), "cannot start");
  auto text = Text::load(arguments.text, arguments.model.context);
  if (!text) return fail(text.error(), "cannot use the text");

  std::optional<DiskLimit> limit;
  if (!plan->swap_bytes.is_zero()) {
    auto measured = measure_disk(plan->runtime_options(*config, 0).paths, ByteCount(384 << 20));
    if (!measured) return fail(measured.error(), "cannot use the swap directory");
    limit = *measured;
    if (!limit) std::fprintf(stderr, "note: the disk is not measured: too little is free\n");
  }
  std::unique_ptr<TraceReport> trace;
  if (arguments.trace) {
    auto created = TraceReport::create(*arguments.trace, unit_names(effective.model));
    if (!created) return fail(created.error(), "cannot write the trace");
    trace = std::move(*created);
  }
  std::optional<OutputFile> json;
  if (arguments.json) {
    auto created = OutputFile::create(*arguments.json);
    if (!created) return fail(created.error(), "cannot write the report");
    json = std::move(*created);
  }
  const Run trained =
      train(effective, *config, *text, limit ? &*limit : nullptr, trace.get(), json ? &*json : nullptr);
  const Result<void> written = trace ? trace->finish() : ok();  // of a failed training too
  if (trained.error) return fail(*trained.error, "training failed");
  if (trace) trace->print();
  if (!written) return fail(written.error(), "cannot write the trace");
  if (const auto closed = json ? json->close() : ok(); !closed)
    return fail(closed.error(), "cannot write the report");
  if (trained.signal != 0) return stopped_by(trained.signal);
  if (!arguments.check) return 0;

  std::printf("\nthe same training with everything in memory\n");
  zero::Config in_memory = *config;
  in_memory.offload_param.device = in_memory.offload_optimizer.device = zero::OffloadDevice::cpu;
  in_memory.penstock.host_budget = in_memory.penstock.device_budget = ByteCount();
  if (auto fits = plan_run(effective, in_memory); !fits) return fail(fits.error(), "cannot train in memory");
  const Run checked = train(effective, in_memory, *text, nullptr, nullptr, nullptr);
  if (checked.error) return fail(*checked.error, "training in memory failed");
  if (checked.signal != 0) return stopped_by(checked.signal);
  const bool equal = checked.digest == trained.digest;
  std::printf("\ncheck %s: on disk %s, in memory %s\n", equal ? "passed" : "FAILED", trained.digest.c_str(),
              checked.digest.c_str());
  return equal ? 0 : 1;
}

int main_body(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Trains a byte-level GPT with Penstock, with its states in the configured tiers");
  TrainingOptions options(app, arguments);
  app.add_option("--nvme-path", arguments.nvme_paths,
                 "swap directories, instead of those of the configuration")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--ranks", arguments.training.ranks, "ranks, as threads")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  app.add_flag("--accumulate-by-layer", arguments.training.layer_by_layer,
               "run each layer for all micro-batches of a step before the next layer, so that parameters are "
               "gathered once a step; needs activations of all micro-batches");
  app.add_flag(
      "--offload-activations", arguments.training.offload_activations,
      "as --checkpoint-activations, and keep the inputs of blocks in the engine's tiers: on the device, in "
      "host memory or on NVMe, as the budgets permit");
  app.add_option("--trace", arguments.trace,
                 "write a Chrome trace of streams and disks to this file, and print what they waited for");
  app.add_flag("--check", arguments.check, "train again with everything in memory and compare the digests");
  if (const auto status = options.parse(argc, argv)) return *status;
  note_stop_signals();
  return run(arguments);
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  const int status = penstock::measure::run_main([&] { return gpt::main_body(argc, argv); });
  if (gpt::address_space_is_limited()) ::_exit(status);
  return status;
}
