// Collectives between processes, against a copy in memory and MPI's own, in turns of one run.
#include "contestants.hpp"

#include "base/process_cpu_time.hpp"
#include "measure/command_line.hpp"
#include "measure/machine.hpp"
#include "measure/run_main.hpp"
#include "measure/statistics.hpp"

#include <penstock/base/time.hpp>
#include <penstock/zero/launch/launch.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace penstock::bench {
namespace {

struct Arguments {
  zero::LaunchOptions launch;
  std::string master;
  std::vector<std::uint64_t> slots_kib = {64, 1024, 16384};
  std::uint32_t rounds = 11;
  double seconds = 0.05;  // of a turn, about
};

using Seconds = std::chrono::duration<double>;

/// Of one contestant, a value a round.
struct Series {
  std::vector<double> bytes_per_second, cpu_seconds_per_gb;
};

/// Runs the collective `times` times.
Result<void> take_turn(Contest& contest, const Contestant& contestant, Collective collective, ByteCount slot,
                       std::uint32_t ranks, std::uint64_t times, Series* series) {
  PENSTOCK_TRY(contest.meet());
  const TimePoint cpu_began = process_cpu_time(), began = Clock::steady().now();
  for (std::uint64_t i = 0; i < times; ++i) PENSTOCK_TRY(contestant.run(collective, slot));
  const double seconds = Seconds(Clock::steady().now() - began).count();
  const double bytes = static_cast<double>((slot * (ranks - 1)).value() * times);
  if (series != nullptr) {
    series->bytes_per_second.push_back(bytes / seconds);
    series->cpu_seconds_per_gb.push_back(Seconds(process_cpu_time() - cpu_began).count() / (bytes / 1e9));
  }
  return ok();
}

/// A round gives each contestant a turn; the first one rotates, in the same way on all ranks.
Result<void> compare(const Arguments& arguments, Contest& contest, Collective collective, ByteCount slot,
                     std::uint32_t ranks, bool prints) {
  const std::vector<Contestant>& contestants = contest.contestants();
  std::vector<Series> series(contestants.size());
  // As many in a turn as a medium of 2 GB/s moves in its time, so that all ranks count the same.
  const auto times = std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(2e9 * arguments.seconds / static_cast<double>((slot * ranks).value())));
  for (std::uint32_t round = 0; round <= arguments.rounds; ++round) {
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      const std::size_t c = (i + round) % contestants.size();
      PENSTOCK_TRY(take_turn(contest, contestants[c], collective, slot, ranks, times,
                             round == 0 ? nullptr : &series[c]));
    }
  }
  if (!prints) return ok();
  fmt::print("\n{}, slots of {}\n{:>12}{:>12}{:>10}{:>14}{:>14}{:>16}\n",
             collective == Collective::all_gather ? "all-gather" : "reduce-scatter", to_string(slot), "",
             "GB/s", "spread", "to memcpy", contestants.size() > 2 ? "to bare MPI" : "", "CPU s a GB");
  for (std::size_t c = 0; c < contestants.size(); ++c) {
    const measure::Center rate = measure::center(series[c].bytes_per_second);
    const auto to = [&](std::size_t other) {
      return measure::median(measure::ratios(series[c].bytes_per_second, series[other].bytes_per_second));
    };
    const bool has_mpi = contestants.size() > 2;
    fmt::print("{:>12}{:>12.3f}{:>9.0f}%{:>14.3f}{:>14}{:>16.2f}\n", contestants[c].name, rate.median / 1e9,
               100 * rate.spread, to(0), has_mpi ? fmt::format("{:.3f}", to(1)) : "",
               measure::median(series[c].cpu_seconds_per_gb));
  }
  std::fflush(stdout);
  return ok();
}

Result<void> run(Arguments arguments) {
  if (!arguments.master.empty()) {
    PENSTOCK_TRY_ASSIGN(arguments.launch.master, zero::Endpoint::parse(arguments.master));
  }
  PENSTOCK_TRY_ASSIGN(const auto launch, zero::find_launch(arguments.launch));
  if (launch.ranks < 2) {
    return Error::invalid_argument("bench_collectives")
        .reason("one process exchanges nothing")
        .advice(
            "mpirun -n 2 --bind-to none bench_collectives, or start each with --rank, --world and --master");
  }
  PENSTOCK_TRY_ASSIGN(const auto options, zero::ProcessGroupOptions::of(launch));
  const bool mpi = launch.source.starts_with("Open MPI") && start_mpi(launch.ranks);
  const bool prints = launch.rank == 0;
  ByteCount slot_max;
  for (const std::uint64_t kib : arguments.slots_kib) slot_max = std::max(slot_max, ByteCount(kib * 1024));
  {
    PENSTOCK_TRY_ASSIGN(const auto contest, Contest::create(options, slot_max, mpi));
    if (prints) {
      const measure::Machine machine = measure::describe_machine();
      fmt::print("{}, {} cores, load {:.1f}; {} ranks\n", machine.cpu, machine.cores, machine.load,
                 launch.ranks);
      if (!mpi) fmt::print("note: without MPI, which Open MPI's mpirun starts\n");
      fmt::print(
          "GB/s: bytes that a rank receives; a reduce-scatter of ours computes the mean too, that of MPI is "
          "an all-to-all\n");
    }
    for (const Collective collective : {Collective::all_gather, Collective::reduce_scatter}) {
      for (const std::uint64_t kib : arguments.slots_kib)
        PENSTOCK_TRY(compare(arguments, *contest, collective, ByteCount(kib * 1024), launch.ranks, prints));
    }
    PENSTOCK_TRY(contest->meet());
  }
  if (mpi) end_mpi();
  return ok();
}

int main_body(int argc, char** argv) {
  Arguments arguments;
  measure::CommandLine app("Collectives between processes, against memcpy and MPI's own");
  app.add_option("--rank", arguments.launch.rank, "of this process; default: as the launcher says");
  app.add_option("--world", arguments.launch.ranks, "number of processes");
  app.add_option("--master", arguments.master, "host and port of rank 0");
  app.add_option("--slots", arguments.slots_kib, "KiB of a rank's slot").show_default().range(1, 1 << 20);
  measure::add_rounds(app, arguments.rounds);
  app.add_option("--seconds", arguments.seconds, "of a turn, about").show_default().number_range(0, 60);
  if (const auto status = app.parse(argc, argv)) return *status;
  return measure::exit_status(run(arguments));
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  return penstock::measure::run_main([&] { return penstock::bench::main_body(argc, argv); });
}
