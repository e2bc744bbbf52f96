// bench_cpu_adam: compares the Adam step in each state format with a floor that only reads and writes the bytes of
// the fp32 format, on the same threads in the same run. With --tail it also compares the whole host part of a step,
// done in two passes, with one pass per operation. With --optimizers it also measures Lion and Adagrad.
#include "contestants.hpp"
#include "report.hpp"
#include "state_formats.hpp"
#include "turns.hpp"

#include "measure/command_line.hpp"
#include "measure/run_main.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace penstock::bench {
namespace {

using measure::center;

const std::map<std::string, Isa> isas = {
    {"scalar", Isa::scalar}, {"v2", Isa::x86_64_v2}, {"v3", Isa::x86_64_v3}, {"v4", Isa::x86_64_v4}};

struct Options {
  std::uint64_t elements = 64 << 20;
  std::vector<std::uint32_t> threads = {1, 2};
  std::vector<std::string> format_names = {"fp32", "split", "split_bf16", "split_q8"};
  bool tail = false, optimizers = false;
  int rounds = 21;
  Isa isa = best_isa().isa;
  bool json = false, turns = false;
};

/// Where the data fits in cache, an uncounted first run replaces what the other contestants left there.
double seconds_of(const Contestant& contestant, parallel::Workers& workers, std::uint64_t elements) {
  const int repeats = static_cast<int>(std::max<std::uint64_t>(1, 2'000'000 / elements));
  if (repeats > 1) contestant.run(workers);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) contestant.run(workers);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repeats;
}

std::vector<Row> measure_all(const std::vector<Contestant>& contestants, std::uint32_t threads,
                             const Options& options) {
  parallel::Workers workers = parallel::Workers::create({.threads = threads}).value();
  for (const Contestant& contestant : contestants) contestant.run(workers);
  std::map<std::string, std::vector<double>> seconds;
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      // The first contestant rotates, so that drift affects all alike.
      const Contestant& one = contestants[(i + static_cast<std::size_t>(round)) % contestants.size()];
      seconds[one.name].push_back(seconds_of(one, workers, options.elements));
    }
  }
  std::vector<Row> rows;
  for (const Contestant& one : contestants) {
    const auto& own = seconds.at(one.name);
    rows.push_back({threads, one.name, one.against, one.bytes_per_element, center(own),
                    center(measure::ratios(seconds.at(one.against), own)),
                    center(measure::ratios(seconds.at("floor"), own))});
  }
  return rows;
}

/// Serves bench/peers, with the largest of the requested thread counts.
void take_turns(const std::vector<Contestant>& contestants, const Options& options) {
  parallel::Workers workers = parallel::Workers::create({.threads = *std::max_element(options.threads.begin(),
                                                                                      options.threads.end())})
                                  .value();
  for (const Contestant& contestant : contestants) contestant.run(workers);
  serve_turns([&, round = std::size_t{0}]() mutable {
    Json::Value figures;
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      const Contestant& one = contestants[(i + round) % contestants.size()];
      figures["seconds"][one.name] = seconds_of(one, workers, options.elements);
    }
    ++round;
    return figures;
  });
}

int run(int argc, char** argv) {
  Options options;
  std::string isa_name;
  measure::CommandLine app(
      "Measures Adam on the CPU in each state format, against a read-modify-write floor over the same bytes");
  app.add_option("--elements", options.elements, "parameters in the tile").show_default().positive();
  app.add_option("--threads", options.threads, "thread counts to measure, including the calling thread")
      .delimiter(',')
      .at_least(1);
  app.add_option("--format", options.format_names, "state formats to measure in addition to fp32")
      .show_default()
      .delimiter(',')
      .one_of(state_formats);
  app.add_flag("--tail", options.tail,
               "measure the whole host part of a step too: fused, and one pass per operation");
  app.add_flag("--optimizers", options.optimizers,
               "measure Lion and Adagrad too, against a floor over their bytes");
  app.add_option("--rounds", options.rounds, "interleaved rounds").show_default().range(1, 100000);
  app.add_option("--isa", isa_name, "instruction set; default: the best one of this CPU").one_of(isas);
  app.add_flag("--json", options.json, "print one line of JSON");
  app.add_flag("--turns", options.turns,
               "run one round for each line of standard input and print it as a line of JSON");
  if (const auto status = app.parse(argc, argv)) return *status;
  if (!isa_name.empty()) options.isa = isas.at(isa_name);

  Report report{measure::describe_machine(), options.elements, options.rounds, options.isa, {}};
  std::vector<cpu_adam::StateFormat> others;
  for (const std::string& name : options.format_names) others.push_back(state_formats.at(name));
  const Contest contest({options.elements, others, options.tail, options.isa, options.optimizers});
  if (options.turns) {
    take_turns(contest.contestants(), options);
    return 0;
  }
  for (const std::uint32_t count : options.threads) {
    std::fprintf(stderr, "measuring %u thread%s\n", count, count == 1 ? "" : "s");
    for (Row& row : measure_all(contest.contestants(), count, options)) report.rows.push_back(std::move(row));
  }
  options.json ? print_json(report) : print_table(report);
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  return penstock::measure::run_main([&] {
    try {
      return penstock::bench::run(argc, argv);
    } catch (const tl::bad_expected_access<penstock::Error>& failed) {
      std::fprintf(stderr, "error: %s\n", failed.error().message().c_str());
      return 1;
    }
  });
}
