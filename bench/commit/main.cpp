// bench_commit: what it costs to make a run durable. With states on disk, a commit against the step before it; with
// states in memory, its rate against the disk's own for writes, and how long the next step waits for one that is made
// behind it; a checkpoint's rate against that of a plain copy of a file.
#include "durable_run.hpp"
#include "file_copy.hpp"
#include "measure/command_line.hpp"
#include "measure/run_main.hpp"
#include "measure/statistics.hpp"
#include "print_machine.hpp"

#include <penstock/base/time.hpp>
#include <penstock/swap/disk_benchmark.hpp>

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
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
  double device_seconds = 0.5;
};

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

struct Series {
  std::vector<double> step, commit, to_step, in_memory, to_writes, stall, stall_to_step, checkpoint,
      to_file_copy;
};

double in_seconds(TimePoint time) {
  return std::chrono::duration<double>(time).count();
}

/// What is measured in turns.
struct Subjects {
  DurableRun &on_disk, &in_memory;
  swap::DiskBenchmark& writes;
  FileCopy& file_copy;
  std::filesystem::path checkpoints;
};

/// The first two commits write places that were never written.
constexpr std::uint32_t untimed = 2;

Result<void> measure_round(const Arguments& arguments, std::uint32_t round, const Subjects& subjects,
                           Series& series) {
  DurableRun &on_disk = subjects.on_disk, &in_memory = subjects.in_memory;
  const auto write_rate = [&]() -> Result<double> {
    PENSTOCK_TRY_ASSIGN(const auto sample,
                        subjects.writes.run(swap::BenchmarkPattern::write, std::chrono::milliseconds(600)));
    return sample.bytes_per_second();
  };
  PENSTOCK_TRY_ASSIGN(const double step, on_disk.step());
  PENSTOCK_TRY_ASSIGN(const auto commit, on_disk.engine().commit());
  const double commit_seconds = in_seconds(commit.duration);

  PENSTOCK_TRY(in_memory.step());
  PENSTOCK_TRY_ASSIGN(const double writes_before, write_rate());
  PENSTOCK_TRY_ASSIGN(const auto copies, in_memory.engine().commit());
  PENSTOCK_TRY_ASSIGN(const double writes_after, write_rate());
  const double copied = static_cast<double>(copies.copied.value()) / in_seconds(copies.duration);

  PENSTOCK_TRY_ASSIGN(const double alone, in_memory.step(arguments.device_seconds));
  PENSTOCK_TRY(in_memory.engine().begin_commit());
  PENSTOCK_TRY(in_memory.step(arguments.device_seconds));
  PENSTOCK_TRY_ASSIGN(const auto behind, in_memory.engine().finish_commit());
  const double stall = in_seconds(behind.stall);

  PENSTOCK_TRY_ASSIGN(const double copy_before, subjects.file_copy.run());
  const TimePoint began = Clock::steady().now();
  PENSTOCK_TRY_ASSIGN(const auto saved, on_disk.engine().save_checkpoint(subjects.checkpoints, {.keep = 1}));
  const double checkpoint =
      2 * static_cast<double>((saved.written + saved.cloned).value()) / seconds_since(began);
  PENSTOCK_TRY_ASSIGN(const double copy_after, subjects.file_copy.run());
  if (round < untimed) return ok();

  const double writes = (writes_before + writes_after) / 2, file_copies = (copy_before + copy_after) / 2;
  series.step.push_back(step);
  series.commit.push_back(commit_seconds);
  series.to_step.push_back(commit_seconds / step);
  series.in_memory.push_back(copied / 1e9);
  series.to_writes.push_back(copied / writes);
  series.stall.push_back(stall);
  series.stall_to_step.push_back(stall / alone);
  series.checkpoint.push_back(checkpoint / 1e9);
  series.to_file_copy.push_back(checkpoint / file_copies);
  fmt::print(
      "{:>6}{:>10.3f}{:>10.4f}{:>8.3f}{:>10.2f}{:>8.2f}{:>8.2f}{:>10.3f}{:>8.3f}{:>10.2f}{:>8.2f}{:>8.2f}{}"
      "\n",
      round - untimed + 1, step, commit_seconds, commit_seconds / step, copied / 1e9, writes / 1e9,
      copied / writes, stall, stall / alone, checkpoint / 1e9, file_copies / 1e9, checkpoint / file_copies,
      saved.written.is_zero() ? "  by reflink" : "");
  return ok();
}

Result<void> run(const Arguments& arguments) {
  PENSTOCK_TRY(print_machine(arguments.path, arguments.io_deadline));
  const RunDirectory disk_directory(arguments.path, "disk"), memory_directory(arguments.path, "memory"),
      checkpoints(arguments.path, "checkpoints"), copies(arguments.path, "copies");
  PENSTOCK_TRY_ASSIGN(const auto on_disk, DurableRun::create(arguments.parameters, zero::OffloadDevice::nvme,
                                                             disk_directory.path(), disk_directory.path()));
  PENSTOCK_TRY(on_disk->initialize());
  PENSTOCK_TRY_ASSIGN(const auto in_memory, DurableRun::create(arguments.parameters, zero::OffloadDevice::cpu,
                                                               memory_directory.path()));
  PENSTOCK_TRY(in_memory->initialize());
  // As many bytes as the copies of two commits have places, so that caches below the disk help both alike.
  const ByteCount capacity(arguments.parameters * 12 * 2);
  PENSTOCK_TRY_ASSIGN(const auto writes, swap::DiskBenchmark::create(
                                             {.paths = {{.directory = arguments.path,
                                                         .capacity = std::max(capacity, ByteCount(1_GiB)),
                                                         .deadline = arguments.io_deadline}}}));
  fmt::print(
      "{} parameters, states of 12 B each; {} s of a device's arithmetic in a step that a commit is "
      "behind\n\n",
      arguments.parameters, arguments.device_seconds);
  fmt::print("{:>6}{:>28}{:>26}{:>18}{:>26}\n", "", "states on disk", "in memory, GB/s", "behind a step",
             "checkpoint, GB/s");
  fmt::print("{:>6}{:>10}{:>10}{:>8}{:>10}{:>8}{:>8}{:>10}{:>8}{:>10}{:>8}{:>8}\n", "round", "step s",
             "commit s", "ratio", "commit", "disk", "ratio", "stall s", "ratio", "copy", "disk", "ratio");
  std::filesystem::create_directory(copies.path());
  FileCopy file_copy(copies.path(), ByteCount(arguments.parameters * 12));
  PENSTOCK_TRY(file_copy.open());
  const Subjects subjects{*on_disk, *in_memory, *writes, file_copy, checkpoints.path()};
  Series series;
  for (std::uint32_t round = 0; round < arguments.rounds + untimed; ++round)
    PENSTOCK_TRY(measure_round(arguments, round, subjects, series));
  fmt::print("{:>6}{:>10.3f}{:>10.4f}{:>8.3f}{:>10.2f}{:>8}{:>8.2f}{:>10.3f}{:>8.3f}{:>10.2f}{:>8}{:>8.2f}\n",
             "median", median(series.step), median(series.commit), median(series.to_step),
             median(series.in_memory), "", median(series.to_writes), median(series.stall),
             median(series.stall_to_step), median(series.checkpoint), "", median(series.to_file_copy));
  return ok();
}

int main_body(int argc, char** argv) {
  Arguments arguments;
  measure::CommandLine app("The cost of commits and checkpoints, against the step and the disk's own rates");
  app.add_option("--path", arguments.path, "directory on the drive").show_default();
  measure::add_io_deadline(app, arguments.io_deadline);
  app.add_option("--parameters", arguments.parameters, "of the model")
      .show_default()
      .range(std::uint64_t{100'000}, std::uint64_t{1} << 40);
  measure::add_rounds(app, arguments.rounds);
  app.add_option("--device-seconds", arguments.device_seconds,
                 "of a device's arithmetic in a step that a commit is behind")
      .show_default()
      .number_range(0, 3600);
  if (const auto status = app.parse(argc, argv)) return *status;
  return measure::exit_status(run(arguments));
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  return penstock::measure::run_main([&] { return penstock::bench::main_body(argc, argv); });
}
