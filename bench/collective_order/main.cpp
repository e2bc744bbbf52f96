// What the engine's order of collectives costs: hops on a runtime, against direct calls of the communicator.
#include "rank.hpp"

#include "base/process_cpu_time.hpp"
#include "measure/command_line.hpp"
#include "measure/machine.hpp"
#include "measure/run_main.hpp"
#include "measure/statistics.hpp"

#include <penstock/zero/comm/in_process_group.hpp>
#include <penstock/zero/comm/process_group.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

namespace penstock::bench {
namespace {

struct Arguments {
  std::uint32_t ranks = 2;
  std::uint16_t port = 29600;
  std::vector<std::uint64_t> flats_kib = {1024, 16384, 65536};
  std::uint32_t rounds = 21;
  double seconds = 0.1;  // of a turn, about
};

/// Of one way, a value a round.
struct Series {
  std::vector<double> seconds, cpu_seconds;  // the latter of all ranks
};
struct Pair {
  Series direct, hops;
};

Result<void> take_turn(Rank& rank, ByteCount flat, bool through_hops, std::uint64_t times, Series* series) {
  PENSTOCK_TRY(rank.meet());
  const TimePoint cpu_began = process_cpu_time(), began = Clock::steady().now();
  for (std::uint64_t i = 0; i < times; ++i)
    PENSTOCK_TRY(through_hops ? rank.call_through_hops(flat) : rank.call_directly(flat));
  if (series == nullptr) return ok();
  using Seconds = std::chrono::duration<double>;
  const auto each = static_cast<double>(times);
  series->seconds.push_back(Seconds(Clock::steady().now() - began).count() / each);
  series->cpu_seconds.push_back(Seconds(process_cpu_time() - cpu_began).count() / each);
  return ok();
}

/// The way that begins alternates, in the same rounds on all ranks.
Result<Pair> compare(Rank& rank, ByteCount flat, const Arguments& arguments) {
  Pair pair;
  // As many in a turn as a medium of 2 GB/s moves in its time.
  const double bytes = static_cast<double>(flat.value()) * Rank::flats * 2;
  const auto times = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(2e9 * arguments.seconds / bytes));
  for (std::uint32_t round = 0; round <= arguments.rounds; ++round) {
    for (const bool second : {false, true}) {
      const bool through_hops = second != (round % 2 == 1);
      Series* const series = through_hops ? &pair.hops : &pair.direct;
      PENSTOCK_TRY(take_turn(rank, flat, through_hops, times, round == 0 ? nullptr : series));
    }
  }
  return pair;
}

Result<void> run_rank(std::uint32_t number, const char* name, const Rank::Join& join,
                      const Arguments& arguments) {
  const ByteCount flat_max(std::ranges::max(arguments.flats_kib) * 1024);
  PENSTOCK_TRY_ASSIGN(const auto rank, Rank::create(join, flat_max));
  for (const std::uint64_t kib : arguments.flats_kib) {
    const ByteCount flat(kib * 1024);
    PENSTOCK_TRY_ASSIGN(const Pair pair, compare(*rank, flat, arguments));
    if (number != 0) continue;
    const auto& [direct, hops] = pair;
    const auto ratios = measure::ratios(hops.seconds, direct.seconds);
    fmt::print("{:>12}{:>12}{:>14.3f}{:>14.3f}{:>10.3f}{:>9.0f}%{:>12.3f}\n", name, to_string(flat),
               measure::median(direct.seconds) * 1e3, measure::median(hops.seconds) * 1e3,
               measure::median(ratios), 100 * measure::spread(ratios),
               measure::median(measure::ratios(hops.cpu_seconds, direct.cpu_seconds)));
    std::fflush(stdout);
  }
  return rank->meet();
}

/// Runs each rank on a thread, and returns the first error.
Result<void> run_ranks(const char* name, const Arguments& arguments,
                       const std::function<Result<Rank::Join>(std::uint32_t rank)>& make_join) {
  std::vector<Result<void>> outcomes(arguments.ranks);
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < arguments.ranks; ++r) {
    threads.emplace_back([&, r] {
      const auto join = make_join(r);
      outcomes[r] = join ? run_rank(r, name, *join, arguments) : Result<void>(join.error());
    });
  }
  for (std::thread& one : threads) one.join();
  for (const Result<void>& outcome : outcomes) PENSTOCK_TRY(outcome);
  return ok();
}

Result<void> run(const Arguments& arguments) {
  const measure::Machine machine = measure::describe_machine();
  fmt::print("{}, {} cores, load {:.1f}; {} ranks, {} flats gathered and reduced\n", machine.cpu,
             machine.cores, machine.load, arguments.ranks, Rank::flats);
  fmt::print("{:>12}{:>12}{:>14}{:>14}{:>10}{:>10}{:>12}\n", "", "flat", "direct, ms", "hops, ms", "ratio",
             "spread", "CPU ratio");
  PENSTOCK_TRY_ASSIGN(const auto group, zero::InProcessGroup::create(arguments.ranks));
  PENSTOCK_TRY(run_ranks("in process", arguments, [&group](std::uint32_t rank) -> Result<Rank::Join> {
    return Rank::Join([&group, rank](tiers::Device& device, Compute& compute) {
      return group->join(rank, device, compute);
    });
  }));
  return run_ranks("TCP", arguments, [&arguments](std::uint32_t rank) -> Result<Rank::Join> {
    PENSTOCK_TRY_ASSIGN(auto joined,
                        zero::ProcessGroup::join({.rank = rank,
                                                  .ranks = arguments.ranks,
                                                  .rank_0 = {.host = "127.0.0.1", .port = arguments.port},
                                                  .job = "bench_collective_order"}));
    return Rank::Join(
        [joined](tiers::Device& device, Compute& compute) { return joined->connect(device, compute, {}); });
  });
}

int main_body(int argc, char** argv) {
  Arguments arguments;
  measure::CommandLine app("The engine's order of collectives, against direct calls of the communicator");
  app.add_option("--ranks", arguments.ranks, "threads").show_default().range(2, 64);
  app.add_option("--port", arguments.port, "of 127.0.0.1").show_default();
  app.add_option("--flats", arguments.flats_kib, "KiB of a flat, a multiple of the ranks")
      .show_default()
      .range(1, 1 << 20);
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
