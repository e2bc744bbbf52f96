// bench_commit: what it costs to make a run durable. With states on disk, a commit against the step before it; with
// states in memory, its rate against the disk's own for writes; a checkpoint's rate against that for reads and writes.
#include "measure/command_line.hpp"
#include "measure/io_deadline.hpp"
#include "measure/machine.hpp"
#include "measure/run_main.hpp"
#include "measure/statistics.hpp"
#include "measure/storage_device.hpp"

#include <penstock/base/time.hpp>
#include <penstock/swap/disk_benchmark.hpp>
#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/rank.hpp>

#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::bench {
namespace {

using measure::median;

struct Arguments {
  std::filesystem::path path = ".";
  TimePoint io_deadline = std::chrono::seconds(60);
  std::uint64_t parameters = 64'000'000;
  std::uint32_t rounds = 5;
};

constexpr std::uint32_t units = 8;

double seconds_since(TimePoint began) {
  return std::chrono::duration<double>(Clock::steady().now() - began).count();
}

/// A directory that is removed with its files.
class RunDirectory {
 public:
  RunDirectory(const std::filesystem::path& above, const char* name)
      : path_(above / ("bench_commit-" + std::to_string(::getpid()) + "-" + name)) {}
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;
  ~RunDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A durable run of one rank, whose arithmetic is nothing but the optimizer's.
class Run {
 public:
  static Result<std::unique_ptr<Run>> create(const Arguments& arguments, zero::OffloadDevice to,
                                             const std::filesystem::path& durable) {
    zero::Config config{.stage = 3};
    config.dtype = DType::bf16;
    config.grad_accum_dtype = DType::fp32;
    config.offload_param.device = config.offload_optimizer.device = to;
    if (to == zero::OffloadDevice::nvme)
      config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = {durable};
    config.penstock.durable_directories = {durable};
    zero::ModelLayout model;
    for (std::uint32_t u = 0; u < units; ++u) {
      model.units.push_back({.name = "unit" + std::to_string(u),
                             .parameters = {{"weight", ElementCount(arguments.parameters / units)}}});
    }
    std::unique_ptr<Run> run(new Run());
    PENSTOCK_TRY_ASSIGN(run->rank_, zero::Rank::create({.config = config, .model = std::move(model)}));
    PENSTOCK_TRY_ASSIGN(run->stream_, run->rank_->device().create_stream());
    PENSTOCK_TRY(
        run->engine().initialize([](zero::ParameterId, std::uint64_t first, std::span<float> values) {
          for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = static_cast<float>((first + i) % 97) * 0.01f;
        }));
    return run;
  }

  [[nodiscard]] zero::Engine& engine() { return rank_->engine(); }

  /// Returns the seconds of a step and its update.
  Result<double> step() {
    const TimePoint began = Clock::steady().now();
    PENSTOCK_TRY(engine().begin_step({}));
    for (std::uint32_t u = 0; u < units; ++u) {
      PENSTOCK_TRY_ASSIGN(auto lease, engine().acquire(u, *stream_));
      PENSTOCK_TRY_ASSIGN(auto gradients, engine().gradients(u, *stream_));
      const HostSpan slot = tiers::HostDevice::bytes(gradients.slots()[0].tensor.bytes);
      std::memset(slot.data(), 0x3c, slot.size().value());  // 0.01
      lease.end();
      PENSTOCK_TRY(engine().reduce(std::move(gradients), *stream_));
    }
    PENSTOCK_TRY(engine().step());
    PENSTOCK_TRY(engine().finish_update());
    return seconds_since(began);
  }

 private:
  Run() = default;
  std::unique_ptr<zero::Rank> rank_;
  std::unique_ptr<tiers::Stream> stream_;
};

struct Series {
  std::vector<double> step, commit, to_step, in_memory, to_writes, checkpoint, to_mixed;
};

Result<void> measure_round(std::uint32_t round, Run& on_disk, Run& in_memory, swap::DiskBenchmark& load,
                           const std::filesystem::path& checkpoints, Series& series) {
  const auto rate = [&load](swap::BenchmarkPattern pattern) -> Result<double> {
    PENSTOCK_TRY_ASSIGN(const auto sample, load.run(pattern, std::chrono::milliseconds(600)));
    return sample.bytes_per_second();
  };
  PENSTOCK_TRY_ASSIGN(const double step, on_disk.step());
  PENSTOCK_TRY_ASSIGN(const auto commit, on_disk.engine().commit());
  const double commit_seconds = std::chrono::duration<double>(commit.duration).count();

  PENSTOCK_TRY(in_memory.step());
  PENSTOCK_TRY_ASSIGN(const double writes_before, rate(swap::BenchmarkPattern::write));
  PENSTOCK_TRY_ASSIGN(const auto copies, in_memory.engine().commit());
  PENSTOCK_TRY_ASSIGN(const double writes_after, rate(swap::BenchmarkPattern::write));
  const double copied =
      static_cast<double>(copies.copied.value()) / std::chrono::duration<double>(copies.duration).count();

  PENSTOCK_TRY_ASSIGN(const double mixed_before, rate(swap::BenchmarkPattern::mixed));
  const TimePoint began = Clock::steady().now();
  PENSTOCK_TRY_ASSIGN(const auto saved, on_disk.engine().save_checkpoint(checkpoints, {.keep = 1}));
  const double checkpoint =
      2 * static_cast<double>((saved.written + saved.cloned).value()) / seconds_since(began);
  PENSTOCK_TRY_ASSIGN(const double mixed_after, rate(swap::BenchmarkPattern::mixed));
  if (round == 0) return ok();

  const double writes = (writes_before + writes_after) / 2, mixed = (mixed_before + mixed_after) / 2;
  series.step.push_back(step);
  series.commit.push_back(commit_seconds);
  series.to_step.push_back(commit_seconds / step);
  series.in_memory.push_back(copied / 1e9);
  series.to_writes.push_back(copied / writes);
  series.checkpoint.push_back(checkpoint / 1e9);
  series.to_mixed.push_back(checkpoint / mixed);
  fmt::print("{:>6}{:>10.3f}{:>10.4f}{:>10.3f}{:>12.2f}{:>10.2f}{:>10.2f}{:>12.2f}{:>10.2f}{:>10.2f}{}\n",
             round, step, commit_seconds, commit_seconds / step, copied / 1e9, writes / 1e9, copied / writes,
             checkpoint / 1e9, mixed / 1e9, checkpoint / mixed,
             saved.written.is_zero() ? "  by reflink" : "");
  return ok();
}

Result<void> run(const Arguments& arguments) {
  const measure::Machine machine = measure::describe_machine();
  PENSTOCK_TRY_ASSIGN(const auto storage, measure::describe_storage(arguments.path, arguments.io_deadline));
  fmt::print("{}, {} cores, load {:.1f}; {}\n", machine.cpu, machine.cores, machine.load,
             measure::to_string(storage));
  if (storage.virtual_because) fmt::print("note: {}\n", *storage.virtual_because);
  if (storage.cached_because) {
    fmt::print("note: the figures measure the page cache, not a disk: {}\n", *storage.cached_because);
  }
  const RunDirectory disk_directory(arguments.path, "disk"), memory_directory(arguments.path, "memory"),
      checkpoints(arguments.path, "checkpoints");
  PENSTOCK_TRY_ASSIGN(const auto on_disk,
                      Run::create(arguments, zero::OffloadDevice::nvme, disk_directory.path()));
  PENSTOCK_TRY_ASSIGN(const auto in_memory,
                      Run::create(arguments, zero::OffloadDevice::cpu, memory_directory.path()));
  PENSTOCK_TRY_ASSIGN(
      auto load,
      swap::DiskBenchmark::create(
          {.paths = {{.directory = arguments.path, .capacity = 1_GiB, .deadline = arguments.io_deadline}}}));
  fmt::print("{} parameters, states of 12 B each\n\n{:>6}{:>30}{:>32}{:>32}\n", arguments.parameters, "",
             "states on disk", "in memory, GB/s", "checkpoint, GB/s read and written");
  fmt::print("{:>6}{:>10}{:>10}{:>10}{:>12}{:>10}{:>10}{:>12}{:>10}{:>10}\n", "round", "step s", "commit s",
             "ratio", "commit", "disk", "ratio", "copy", "disk", "ratio");
  Series series;
  for (std::uint32_t round = 0; round <= arguments.rounds; ++round) {
    PENSTOCK_TRY(measure_round(round, *on_disk, *in_memory, *load, checkpoints.path(), series));
  }
  fmt::print("{:>6}{:>10.3f}{:>10.4f}{:>10.3f}{:>12.2f}{:>10}{:>10.2f}{:>12.2f}{:>10}{:>10.2f}\n", "median",
             median(series.step), median(series.commit), median(series.to_step), median(series.in_memory), "",
             median(series.to_writes), median(series.checkpoint), "", median(series.to_mixed));
  return ok();
}

int main_body(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("The cost of commits and checkpoints, against the step and the disk's own rates");
  app.add_option("--path", arguments.path, "directory on the drive")->capture_default_str();
  measure::add_io_deadline(app, arguments.io_deadline);
  app.add_option("--parameters", arguments.parameters, "of the model")
      ->capture_default_str()
      ->check(CLI::Range(std::uint64_t{100'000}, std::uint64_t{1} << 40));
  measure::add_rounds(app, arguments.rounds);
  if (const auto status = measure::parse(app, argc, argv)) return *status;
  return measure::exit_status(run(arguments));
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  return penstock::measure::run_main([&] { return penstock::bench::main_body(argc, argv); });
}
