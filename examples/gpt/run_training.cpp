#include "gpt/run_training.hpp"

#include "gpt/rank_threads.hpp"
#include "gpt/rank_trainer.hpp"
#include "gpt/stop_signal.hpp"
#include "gpt/training_report.hpp"

#include <penstock/base/on_signal.hpp>
#include <penstock/zero/report/run_report.hpp>

#include <unistd.h>
#include <atomic>
#include <barrier>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace gpt {

using namespace penstock;  // NOLINT: an example reads better so

namespace {

double mean_loss(std::span<const StepReport> reports) {
  double sum = 0;
  for (const StepReport& report : reports) sum += report.loss;
  return sum / static_cast<double>(reports.size());
}

/// The error of a step, with what it cost: the example saves at the end only.
Error lost(Error error, std::uint32_t step, std::uint32_t steps, std::uint32_t rank) {
  return std::move(error).note("lost    step " + std::to_string(step) + " of " + std::to_string(steps) +
                               ", on rank " + std::to_string(rank) + ", and what was trained before");
}

/// Prints the report of each rank of this process to standard error when it gets SIGUSR1. Null, with a note, if that is
/// not possible.
std::unique_ptr<OnSignal> report_on_signal(const TrainingReport::Trainers& trainers) {
  auto asked = OnSignal::create(SIGUSR1, [&trainers] {
    for (const auto& trainer : trainers) std::fprintf(stderr, "\n%s", to_text(trainer->report()).c_str());
  });
  if (asked) return std::move(*asked);
  std::fprintf(stderr, "note: no report on SIGUSR1: %s\n", asked.error().message().c_str());
  return nullptr;
}

}  // namespace

Run run_training(const RunOptions& options) {
  const auto& [arguments, group, config, text, states, commit_every, limit, trace, json, uses_file] = options;
  const std::uint32_t ranks = group.size();
  const bool leads = group.identity(0).rank == 0;
  std::vector<std::unique_ptr<RankTrainer>> trainers(ranks);
  std::unique_ptr<OnSignal> asked;  // ends before the trainers
  std::vector<StepReport> reports(ranks);
  std::optional<TrainingReport> report;
  if (leads) report.emplace(arguments.model, arguments.training, ranks, limit, !arguments.cuda);
  std::barrier arrived(ranks);
  std::mutex mutex;
  std::atomic<bool> failed{false};
  Run run;

  std::string uses;
  std::function<void(const swap::AccessTrace&)> save_uses;
  if (uses_file != nullptr) {
    save_uses = [&uses, file = options.uses](const swap::AccessTrace& recorded) {
      uses = to_text(recorded);
      std::fputs(uses.c_str(), file->get());
    };
  }

  const auto run_rank = [&](std::uint32_t here) -> Result<void> {
    const zero::RankIdentity identity = group.identity(here);
    const std::uint32_t rank = identity.rank;
    const std::uint32_t process = group.is_of_processes() ? identity.local_rank : 0;
    PENSTOCK_TRY_ASSIGN(trainers[here],
                        RankTrainer::create({.model = arguments.model,
                                             .training = arguments.training,
                                             .config = config,
                                             .text = &text,
                                             .identity = identity,
                                             .group = group.membership(here),
                                             .make_device = arguments.cuda ? on_cuda(arguments.model, process)
                                                                           : on_host(arguments.model),
                                             .base = states.base ? &*states.base : nullptr,
                                             .resumed = states.resumed ? &*states.resumed : nullptr,
                                             .timed = trace != nullptr,
                                             .take_uses = rank == 0 ? save_uses : nullptr}));
    if (rank == 0) {
      for (const std::string& note : trainers[here]->notes())
        std::fprintf(stderr, "note: %s\n", note.c_str());
    }
    bool has_stepped = false;
    std::uint32_t step = states.first_step();
    if (const auto committed = trainers[here]->committed_steps()) {
      step = static_cast<std::uint32_t>(*committed);
      if (rank == 0) std::fprintf(stderr, "note: continues after step %u\n", step);
    }
    std::uint32_t committed = step;
    const auto commit = [&]() -> Result<void> {
      if (!config.is_durable() || committed == step) return ok();
      committed = step;
      return trainers[here]->begin_commit(step);
    };
    while (step < arguments.training.steps && run.signal == 0) {
      auto done = trainers[here]->step(step);
      if (!done) return lost(std::move(done).error(), step + 1, arguments.training.steps, rank);
      for (const std::string& message : done->messages) {
        std::fprintf(stderr, "note: rank %u: %s\n", rank, message.c_str());
      }
      reports[here] = *done;
      arrived.arrive_and_wait();
      if (here == 0 && !failed) {
        auto agreed = group.agree({.loss = mean_loss(reports), .signal = stop_signal()});
        if (!agreed) return lost(std::move(agreed).error(), step + 1, arguments.training.steps, rank);
        run.signal = agreed->signal;
        if (!std::exchange(has_stepped, true)) asked = report_on_signal(trainers);
        if (auto written = trainers[here]->write_loss(step + 1, agreed->loss); !written)
          std::fprintf(stderr, "note: %s\n", written.error().message().c_str());
        if (report) report->step(step, agreed->loss, reports, trainers);
        for (std::uint32_t i = 0; trace != nullptr && i < ranks; ++i) trace->add(i, *trainers[i]->timeline());
        for (const std::string& message : group.take_messages())
          std::fprintf(stderr, "note: rank %u: %s\n", rank, message.c_str());
      }
      arrived.arrive_and_wait();
      ++step;
      if (step % commit_every == 0) PENSTOCK_TRY(commit());
    }
    PENSTOCK_TRY(commit());
    PENSTOCK_TRY(trainers[here]->finish_commit());
    PENSTOCK_TRY_ASSIGN(auto digest, trainers[here]->digest());
    if (states.saved) PENSTOCK_TRY(trainers[here]->save(*states.saved));
    const std::lock_guard lock(mutex);
    run.digest = digest;
    run.progress = trainers[here]->progress(step);
    return ok();
  };
  const auto ran = run_ranks(ranks, [&](std::uint32_t here) {
    auto outcome = run_rank(here);
    if (outcome) return;
    const std::lock_guard lock(mutex);
    // peer_failed is a consequence of another rank's error, which is the one to report.
    if (!run.error || run.error->code() == ErrorCode::peer_failed) run.error = outcome.error();
    failed = true;
    group.abort(here, outcome.error());
    arrived.arrive_and_drop();
  });
  if (!ran) run.error = ran.error();
  if (run.error && run.error->code() == ErrorCode::deadline_exceeded && arguments.cuda) {
    // A device that makes no progress would keep the destructors of streams and buffers on it waiting for ever.
    const int status = fail(*run.error, "training failed");
    std::fflush(nullptr);
    ::_exit(status);
  }
  if (!run.error && report) report->end(trainers, run.digest);
  if (!run.error && report && json != nullptr) report->write_json(*json, trainers, run.digest);
  if (!run.error && uses_file != nullptr && uses.empty())
    std::fprintf(stderr, "note: --uses: there was no second step, and its file is empty\n");
  return run;
}

}  // namespace gpt
