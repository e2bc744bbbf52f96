// zero3_step: measures a training step of the example with its states on disk, against the same step with everything
// in memory and against the disk alone, in turns. Two floors: the longer of the two, and that of the phases: the longer
// of forward and disk, plus the backward, because no parameter may be updated before the norm of all gradients is
// known. Beside them, of the run on disk: how many cores it kept busy, and for which part of the time the disk. With
// all cores busy, it waits for the processor.
#include "base/process_cpu_time.hpp"
#include "gpt/rank_trainer.hpp"
#include "measure/command_line.hpp"
#include "measure/run_main.hpp"
#include "measure/statistics.hpp"
#include "print_machine.hpp"
#include "simulated_step.hpp"
#include "swap_file_benchmark.hpp"

#include <penstock/base/time.hpp>

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace penstock::bench {
namespace {

using gpt::RankTrainer;
using gpt::StepReport;
using measure::median;

struct Arguments {
  gpt::ModelConfig model{.layers = 4, .width = 512, .heads = 8, .context = 64};
  gpt::TrainingConfig training{.ranks = 1, .micro_batches = 1, .sequences = 8};
  std::filesystem::path path = ".", timeline;
  TimePoint io_deadline = std::chrono::seconds(60);
  std::uint32_t host_mib = 0, steps = 4, rounds = 5;
  bool in_backward = false;
};

Result<zero::Config> configuration(const Arguments& arguments, bool on_disk) {
  PENSTOCK_TRY_ASSIGN(auto config, zero::Config::from_text(R"({
    "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"},
    "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 6e-4, "betas": [0.9, 0.95]}},
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
  })",
                                                           "zero3_step", /*world_size=*/1));
  if (arguments.in_backward) config.gradient_clipping = 0;
  if (!on_disk) return config;
  for (zero::OffloadConfig* const offload : {&config.offload_param, &config.offload_optimizer}) {
    offload->device = zero::OffloadDevice::nvme;
    offload->nvme_paths = {arguments.path};
  }
  config.penstock.update_in_backward = arguments.in_backward;
  config.penstock.timeline_file = arguments.timeline;
  config.penstock.host_budget = ByteCount(std::uint64_t{arguments.host_mib} << 20);
  config.penstock.io_deadline_seconds = static_cast<std::uint32_t>(std::max<std::int64_t>(
      1, std::chrono::duration_cast<std::chrono::seconds>(arguments.io_deadline).count()));
  return config;
}

/// Seconds and bytes of a step, the means of one turn.
struct Turn {
  double seconds = 0, cpu_seconds = 0, disk_seconds = 0;  // disk: with a request in flight
  StepReport::Phases took;
  StepReport::Stalls stalled;
  double read = 0, written = 0;
};

void add(StepReport::Phases& sum, const StepReport::Phases& phases, double weight) {
  sum.forward += phases.forward * weight;
  sum.backward += phases.backward * weight;
  sum.step += phases.step * weight;
}

void add(StepReport::Stalls& sum, const StepReport::Stalls& stalls, double weight) {
  sum.parameters += stalls.parameters * weight;
  sum.gradients += stalls.gradients * weight;
  sum.step += stalls.step * weight;
}

/// A model that is trained in turns with another.
class Contestant {
 public:
  static Result<Contestant> create(const Arguments& arguments, const gpt::Text& text, bool on_disk) {
    PENSTOCK_TRY_ASSIGN(const auto config, configuration(arguments, on_disk));
    PENSTOCK_TRY_ASSIGN(auto trainer, RankTrainer::create({.model = arguments.model,
                                                           .training = arguments.training,
                                                           .config = config,
                                                           .text = &text,
                                                           .make_device = gpt::on_host(arguments.model)}));
    return Contestant(std::move(trainer));
  }

  /// The phases of a step that waits for no update, and the update.
  Result<zero::simulate::PhaseSeconds> take_phases() {
    PENSTOCK_TRY_ASSIGN(const StepReport report, trainer_->step(step_++));
    const TimePoint began = Clock::steady().now();
    PENSTOCK_TRY(trainer_->finish_update());
    return zero::simulate::PhaseSeconds{
        .forward = report.took.forward,
        .backward = report.took.backward + report.took.step,
        .update = std::chrono::duration<double>(Clock::steady().now() - began).count()};
  }
  /// Steps that follow each other: the first of them, which is not timed, begins the update that runs beside the next
  /// one's forward; that of the last one is not waited for in the time.
  Result<Turn> take(std::uint32_t steps) {
    PENSTOCK_TRY(trainer_->step(step_++));
    Turn turn;
    const auto before = trainer_->runtime().ledger().traffic();
    const TimePoint disk_began = disk_busy();
    const TimePoint cpu_began = process_cpu_time(), began = Clock::steady().now();
    for (std::uint32_t i = 0; i < steps; ++i) {
      PENSTOCK_TRY_ASSIGN(const StepReport report, trainer_->step(step_++));
      add(turn.took, report.took, 1.0 / steps);
      add(turn.stalled, report.stalled, 1.0 / steps);
    }
    turn.seconds = std::chrono::duration<double>(Clock::steady().now() - began).count() / steps;
    turn.cpu_seconds = std::chrono::duration<double>(process_cpu_time() - cpu_began).count() / steps;
    turn.disk_seconds = std::chrono::duration<double>(disk_busy() - disk_began).count() / steps;
    const auto after = trainer_->runtime().ledger().traffic();
    turn.read = static_cast<double>((after.read - before.read).value()) / steps;
    turn.written = static_cast<double>((after.written - before.written).value()) / steps;
    PENSTOCK_TRY(finish_writes());
    return turn;
  }
  /// Then nothing is moved until the next step.
  Result<void> finish_writes() {
    PENSTOCK_TRY(trainer_->finish_update());
    trainer_->runtime().wait_for_stores(0);
    return trainer_->runtime().check_stores();
  }
  [[nodiscard]] swap::Runtime& runtime() { return trainer_->runtime(); }
  /// What is simulated of its steps.
  [[nodiscard]] Result<zero::simulate::PlannedStep> planned_step(const Arguments& arguments) const {
    PENSTOCK_TRY_ASSIGN(const auto config, configuration(arguments, /*on_disk=*/true));
    return zero::simulate::plan_step(
        config, gpt::layout_of(arguments.model, arguments.training, config.optimizer.type), trainer_->plan(),
        {.micro_batches = arguments.training.micro_batches});
  }

 private:
  [[nodiscard]] TimePoint disk_busy() const {
    const auto paths = trainer_->runtime().paths();
    return paths.empty() ? TimePoint{} : paths.front().busy;
  }
  explicit Contestant(std::unique_ptr<RankTrainer> trainer) : trainer_(std::move(trainer)) {}
  std::unique_ptr<RankTrainer> trainer_;
  std::uint32_t step_ = 0;
};

struct Series {
  std::vector<double> memory, disk, disk_alone, to_longer, to_phases, cores, disk_busy, stall, predicted;
};

Result<void> measure_round(const Arguments& arguments, std::uint32_t round, Contestant& memory,
                           Contestant& disk, SwapFileBenchmark& file,
                           const zero::simulate::PlannedStep& planned, Series& series) {
  const auto rates_now = [&file] { return file.measure(std::chrono::milliseconds(500)); };
  std::array<Turn, 2> turns;  // in memory, on disk; the first one rotates
  PENSTOCK_TRY_ASSIGN(const swap::DiskRates before, rates_now());
  PENSTOCK_TRY_ASSIGN(const auto phases_before, memory.take_phases());
  for (std::uint32_t i = 0; i < 2; ++i) {
    const bool on_disk = (i + round) % 2 == 1;
    PENSTOCK_TRY_ASSIGN(turns[on_disk ? 1 : 0], (on_disk ? disk : memory).take(arguments.steps));
  }
  PENSTOCK_TRY_ASSIGN(const auto phases_after, memory.take_phases());
  PENSTOCK_TRY_ASSIGN(const swap::DiskRates after, rates_now());
  if (round == 0) return ok();
  const swap::DiskRates rates = mean(before, after);
  PENSTOCK_TRY_ASSIGN(const auto predicted,
                      predict_step(planned, rates,
                                   {.forward = (phases_before.forward + phases_after.forward) / 2,
                                    .backward = (phases_before.backward + phases_after.backward) / 2,
                                    .update = (phases_before.update + phases_after.update) / 2}));
  const auto& [in_memory, on_disk] = turns;
  const double alone = (on_disk.read + on_disk.written) / rates.mixed;
  const double longer = std::max(in_memory.seconds, alone);
  const double phases =
      in_memory.seconds + std::max(alone - in_memory.took.forward, 0.0);  // in one step after the other
  series.memory.push_back(in_memory.seconds);
  series.disk.push_back(on_disk.seconds);
  series.disk_alone.push_back(alone);
  series.to_longer.push_back(on_disk.seconds / longer);
  series.to_phases.push_back(on_disk.seconds / phases);
  series.cores.push_back(on_disk.cpu_seconds / on_disk.seconds);
  series.disk_busy.push_back(on_disk.disk_seconds / on_disk.seconds);
  series.stall.push_back(on_disk.stalled.sum() / on_disk.seconds);
  series.predicted.push_back(predicted.seconds / on_disk.seconds);
  const auto bytes = [](double count) { return to_string(ByteCount(static_cast<std::uint64_t>(count))); };
  fmt::print("{:>6}{:>12.3f}{:>12.3f}{:>12.3f}{:>10.2f}{:>10.2f}{:>8.2f}{:>8.2f}", round, in_memory.seconds,
             alone, on_disk.seconds, on_disk.seconds / longer, on_disk.seconds / phases, series.cores.back(),
             series.disk_busy.back());
  fmt::print("{:>12.3f}{:>10.3f}{:>8.3f}{:>12}{:>12}", on_disk.stalled.parameters, on_disk.stalled.gradients,
             on_disk.stalled.step, bytes(on_disk.read), bytes(on_disk.written));
  fmt::print("{:>12.3f}{:>8.2f}{:>12}{:>12}\n", predicted.seconds, predicted.seconds / on_disk.seconds,
             to_string(predicted.read), to_string(predicted.written));
  return ok();
}

Result<void> run(const Arguments& arguments) {
  PENSTOCK_TRY(print_machine(arguments.path, arguments.io_deadline));
  PENSTOCK_TRY_ASSIGN(const gpt::Text text, gpt::Text::load({}, arguments.model.context));
  PENSTOCK_TRY_ASSIGN(auto memory, Contestant::create(arguments, text, /*on_disk=*/false));
  PENSTOCK_TRY_ASSIGN(auto disk, Contestant::create(arguments, text, /*on_disk=*/true));
  const swap::PathReport path = disk.runtime().paths().front();
  PENSTOCK_TRY(disk.finish_writes());
  PENSTOCK_TRY_ASSIGN(auto file, SwapFileBenchmark::create(path, arguments.io_deadline));
  fmt::print("engine {}, direct I/O {}\n{} parameters, {} tokens a step, host memory of the run on disk {}\n",
             path.engine, path.file.direct ? "yes" : "NO",
             to_string(gpt::ModelDescription(arguments.model).element_count()),
             arguments.training.micro_batches * arguments.training.sequences * arguments.model.context,
             to_string(disk.runtime().host_memory().size()));
  fmt::print("\n{:>6}{:>12}{:>12}{:>12}{:>20}{:>8}{:>8}{:>30}{:>24}{:>44}\n", "", "in memory", "disk alone",
             "on disk", "to the floor of", "cores", "disk", "on disk waits, s, for", "traffic of a step",
             "simulated");
  fmt::print(
      "{:>6}{:>12}{:>12}{:>12}{:>10}{:>10}{:>8}{:>8}{:>12}{:>10}{:>8}{:>12}{:>12}{:>12}{:>8}{:>12}{:>12}\n",
      "round", "s a step", "s a step", "s a step", "longer", "phases", "busy", "busy", "parameters",
      "gradients", "step", "read", "written", "s a step", "of it", "read", "written");
  PENSTOCK_TRY_ASSIGN(const auto planned, disk.planned_step(arguments));
  Series series;
  for (std::uint32_t round = 0; round <= arguments.rounds; ++round) {
    PENSTOCK_TRY(measure_round(arguments, round, memory, disk, *file, planned, series));
  }
  fmt::print("{:>6}{:>12.3f}{:>12.3f}{:>12.3f}{:>10.2f}{:>10.2f}{:>8.2f}{:>8.2f}", "median",
             median(series.memory), median(series.disk_alone), median(series.disk), median(series.to_longer),
             median(series.to_phases), median(series.cores), median(series.disk_busy));
  fmt::print("   spread {:.0f} %; stalled {:.0f} % of the time; simulated {:.2f} of it, spread {:.0f} %\n",
             100 * measure::spread(series.to_phases), 100 * median(series.stall), median(series.predicted),
             100 * measure::spread(series.predicted));
  return ok();
}

int main_body(int argc, char** argv) {
  Arguments arguments;
  measure::CommandLine app(
      "A training step with its states on disk, against everything in memory and the disk alone");
  app.add_option("--path", arguments.path, "swap directory").show_default();
  measure::add_io_deadline(app, arguments.io_deadline);
  app.add_option("--layers", arguments.model.layers, "blocks of the model").show_default();
  app.add_option("--width", arguments.model.width, "its width").show_default();
  app.add_option("--heads", arguments.model.heads, "its attention heads").show_default();
  app.add_option("--context", arguments.model.context, "tokens of a sequence").show_default();
  app.add_option("--sequences", arguments.training.sequences, "sequences of a micro-batch").show_default();
  app.add_option("--micro-batches", arguments.training.micro_batches, "micro-batches of a step")
      .show_default();
  app.add_option("--host-mib", arguments.host_mib, "host budget of the run on disk in MiB; 0: as planned")
      .show_default();
  app.add_flag(
      "--in-backward", arguments.in_backward,
      "penstock.update_in_backward, without clipping: then the disk can work beside the backward too");
  app.add_option("--timeline", arguments.timeline,
                 "a file for what the run on disk moves and waits for, in Chrome's trace format");
  app.add_option("--steps", arguments.steps, "timed steps of a turn").show_default().range(1, 1000);
  measure::add_rounds(app, arguments.rounds);
  if (const auto status = app.parse(argc, argv)) return *status;
  // The rates of the schedule do not matter, but the steps must not run out.
  arguments.training.steps = (arguments.steps + 3) * (arguments.rounds + 1) + 1;
  for (auto valid : {arguments.model.validate(), arguments.training.validate()}) {
    if (valid) continue;
    fmt::print(stderr, "error: {}\n", valid.error().message());
    return 2;
  }
  return measure::exit_status(run(arguments));
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  return penstock::measure::run_main([&] { return penstock::bench::main_body(argc, argv); });
}
