// The Adam step in each state format, against what the fp32 format's bytes cost when nothing is computed: a
// read-modify-write pass by a constant over the same streams, in the same layout, cut between the same
// threads, in the same run.

#include "floor.hpp"

#include <penstock/cpu_adam/adam.hpp>

#include "huge_buffer.hpp"
#include "measure/machine.hpp"
#include "measure/statistics.hpp"

#include <fmt/format.h>
#include <json/json.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace penstock::bench {
namespace {

using measure::Center;
using measure::center;
using measure::Machine;

const std::map<std::string, Isa> isas = {
    {"scalar", Isa::scalar}, {"v2", Isa::x86_64_v2}, {"v3", Isa::x86_64_v3}, {"v4", Isa::x86_64_v4}};
const std::map<std::string, StateFormat> formats = {{"fp32", StateFormat::fp32},
                                                    {"split", StateFormat::split},
                                                    {"split_bf16", StateFormat::split_bf16},
                                                    {"split_q8", StateFormat::split_q8}};

struct Options {
  std::uint64_t elements = 64 << 20;
  std::vector<std::uint32_t> threads = {1, 2};
  std::vector<std::string> format_names = {"fp32", "split", "split_bf16", "split_q8"};
  int rounds = 21;
  Isa isa = best_isa().isa;
  bool json = false;
};

/// Gradient and state read and written once, the 16-bit parameter written, and read where it is half of the
/// master.
double bytes_per_element(StateFormat format) {
  const double state = static_cast<double>(block_bytes(format, block_elements).value().value()) /
                       static_cast<double>(block_elements.value());
  return 2 + 2 * state + 2 + (is_split(format) ? 2 : 0);
}

/// What all formats work on: bf16 noise of magnitude 2^-7 to 2^-6 as gradient, parameters of magnitude 1
/// to 2.
struct Streams {
  Streams(std::uint64_t elements, Workers& workers)
      : gradient(ByteCount(2 * elements)), initial(gradient.span().size()) {
    const auto noise = [](std::size_t i) {
      return static_cast<std::uint32_t>((i * 0x9e3779b97f4a7c15u) >> 40);
    };
    const auto gradients = gradient.span().as<std::uint16_t>(), initials = initial.span().as<std::uint16_t>();
    workers.parallel_blocks(gradients.size(), [&](std::size_t first, std::size_t last) noexcept {
      for (std::size_t i = first; i < last; ++i) {
        const std::uint32_t bits = noise(i);
        gradients[i] = static_cast<std::uint16_t>((bits & 0x8000u) | 0x3c00u | (bits & 0x7fu));
        initials[i] = static_cast<std::uint16_t>((bits & 0x8000u) | 0x3f80u | (bits & 0x7fu));
      }
    });
  }
  HugeBuffer gradient, initial;
};

struct Tensors {
  Tensors(StateFormat state_format, std::uint64_t count, const Streams& streams, Workers& workers)
      : format(state_format),
        elements(count),
        state(tile_bytes(format, elements).value()),
        gradient(streams.gradient.span()),
        parameter(ByteCount(2 * count)) {
    const auto initialized = initialize_tile(streams.initial.span(), DType::bf16, tile(), &workers);
    PENSTOCK_CHECK(initialized.has_value());
  }
  [[nodiscard]] AdamTile tile() const {
    return {.state = state.span(),
            .gradient = gradient,
            .parameter = parameter.span(),
            .elements = elements,
            .format = format};
  }

  StateFormat format;
  ElementCount elements;
  HugeBuffer state;
  HostSpan gradient;
  HugeBuffer parameter;
};

void run_floor(const Tensors& tensors, Workers& workers) {
  const volatile float one = 1.0f;  // not known to the compiler; the state stays as it is
  const std::uint64_t block = block_elements.value(), elements = tensors.elements.value();
  const auto state = tensors.state.span().as<float>();
  const auto gradient = tensors.gradient.as<std::uint16_t>();
  const auto parameter = tensors.parameter.span().as<std::uint16_t>();
  const float factor = one;
  workers.parallel_blocks(ceil_divide(elements, block), [&](std::size_t first, std::size_t last) noexcept {
    for (std::size_t b = first; b < last; ++b) {
      const std::uint64_t at = b * block;
      scale_block(&state[3 * at], &gradient[at], &parameter[at], std::min(block, elements - at), factor, 1);
    }
  });
}

/// Runs once on its data, with so many threads.
struct Contestant {
  std::string name;
  double bytes_per_element;
  std::function<void(Workers&)> run;
};

struct Row {
  std::uint32_t threads;
  std::string name;
  double bytes_per_element;
  Center seconds, to_fp32, to_floor;  // its rate to theirs
};

/// The first run of a turn finds what the others have left in the caches; it does not count where all fits.
double seconds_of(const std::function<void(Workers&)>& work, Workers& workers, int repeats) {
  if (repeats > 1) work(workers);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) work(workers);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repeats;
}

/// The first contestant is the floor, the second the fp32 format.
std::vector<Row> measure(const std::vector<Contestant>& contestants, std::uint32_t threads,
                         const Options& options) {
  const int repeats = static_cast<int>(std::max<std::uint64_t>(1, 2'000'000 / options.elements));
  Workers workers = Workers::create({.threads = threads}).value();
  for (const Contestant& contestant : contestants) contestant.run(workers);
  std::vector<std::vector<double>> seconds(contestants.size());
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      // Who begins moves on, so that drift favours nobody.
      const std::size_t which = (i + static_cast<std::size_t>(round)) % contestants.size();
      seconds[which].push_back(seconds_of(contestants[which].run, workers, repeats));
    }
  }
  std::vector<Row> rows;
  for (std::size_t i = 0; i < contestants.size(); ++i) {
    rows.push_back({threads, contestants[i].name, contestants[i].bytes_per_element, center(seconds[i]),
                    center(measure::ratios(seconds[1], seconds[i])),
                    center(measure::ratios(seconds[0], seconds[i]))});
  }
  return rows;
}

void print_json(const Machine& machine, const Options& options, const std::vector<Row>& rows) {
  Json::Value json;
  json["bench"] = "cpu_adam";
  json["cpu"] = machine.cpu;
  json["cores"] = machine.cores;
  json["elements"] = Json::UInt64(options.elements);
  json["rounds"] = options.rounds;
  json["isa"] = std::string(to_string(options.isa));
  for (const Row& row : rows) {
    Json::Value line;
    line["threads"] = row.threads;
    line["name"] = row.name;
    line["bytes_per_parameter"] = row.bytes_per_element;
    line["seconds"] = row.seconds.median;
    line["seconds_spread"] = row.seconds.spread;
    line["to_fp32"] = row.to_fp32.median;
    line["to_floor"] = row.to_floor.median;
    json["rows"].append(line);
  }
  Json::StreamWriterBuilder builder;
  builder["indentation"] = "";
  fmt::print("{}\n", Json::writeString(builder, json));
}

void print_table(const Machine& machine, const Options& options, const std::vector<Row>& rows) {
  const bool best = options.isa == best_isa().isa;
  fmt::print("{}, {} cores, load {:.1f}, huge pages {}\n", machine.cpu, machine.cores, machine.load,
             machine.huge_pages);
  fmt::print("AdamW, gradient and parameter bf16, {:.3f} M parameters, {} rounds, medians, isa {} ({})\n",
             static_cast<double>(options.elements) * 1e-6, options.rounds, to_string(options.isa),
             best ? best_isa().reason : "asked for");
  fmt::print("{:>7}  {:<10}  {:>12}  {:>6}  {:>6}  {:>7}  {:>8}  {:>6}\n", "threads", "format", "G param./s",
             "B each", "GB/s", "to fp32", "to floor", "spread");
  for (const Row& row : rows) {
    const double rate = static_cast<double>(options.elements) * 1e-9 / row.seconds.median;
    fmt::print("{:>7}  {:<10}  {:>12.3f}  {:>6.2f}  {:>6.1f}  {:>7.2f}  {:>8.3f}  {:>4.1f} %\n", row.threads,
               row.name, rate, row.bytes_per_element, rate * row.bytes_per_element, row.to_fp32.median,
               row.to_floor.median, 100 * row.seconds.spread);
  }
}

int run(int argc, char** argv) {
  Options options;
  std::string isa_name;
  CLI::App app(
      "Adam on the CPU, in each state format, against a read-modify-write floor over the same bytes");
  app.add_option("--elements", options.elements, "parameters in the tile")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "thread counts to measure, the caller included")
      ->delimiter(',');
  app.add_option("--format", options.format_names, "state formats beside fp32")
      ->capture_default_str()
      ->delimiter(',')
      ->check(CLI::IsMember(formats));
  app.add_option("--rounds", options.rounds, "interleaved rounds")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  app.add_option("--isa", isa_name, "instruction set instead of the best one")->check(CLI::IsMember(isas));
  app.add_flag("--json", options.json, "print one line of JSON");
  CLI11_PARSE(app, argc, argv);
  if (!isa_name.empty()) options.isa = isas.at(isa_name);

  const Machine machine = measure::describe_machine();
  Workers all = Workers::create({.threads = std::max(1u, std::thread::hardware_concurrency())}).value();
  const Streams streams(options.elements, all);
  std::vector<std::unique_ptr<Tensors>> tensors;
  tensors.push_back(std::make_unique<Tensors>(StateFormat::fp32, options.elements, streams, all));
  for (const std::string& name : options.format_names) {
    if (name == "fp32") continue;
    tensors.push_back(std::make_unique<Tensors>(formats.at(name), options.elements, streams, all));
  }

  std::uint64_t step = 0;
  std::vector<Contestant> contestants = {{"floor", bytes_per_element(StateFormat::fp32),
                                          [&](Workers& workers) { run_floor(*tensors.front(), workers); }}};
  for (const auto& one : tensors) {
    contestants.push_back(
        {std::string(to_string(one->format)), bytes_per_element(one->format), [&](Workers& workers) {
           const AdamConfig config{.weight_decay = 0.01f};
           adam_step(config, ++step, 1.0f, one->tile(), {.workers = &workers, .isa = options.isa}).value();
         }});
  }
  std::vector<Row> rows;
  for (const std::uint32_t count : options.threads) {
    std::fprintf(stderr, "measuring %u thread%s\n", count, count == 1 ? "" : "s");
    for (Row& row : measure(contestants, count, options)) rows.push_back(std::move(row));
  }
  options.json ? print_json(machine, options, rows) : print_table(machine, options, rows);
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  try {
    return penstock::bench::run(argc, argv);
  } catch (const tl::bad_expected_access<penstock::Error>& failed) {
    std::fprintf(stderr, "error: %s\n", failed.error().message().c_str());
    return 1;
  }
}
