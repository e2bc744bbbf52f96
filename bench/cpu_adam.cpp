// The fused Adam step against what the same bytes cost when nothing is computed: a read-modify-write pass by
// a constant over the same streams, in the same layout, cut between the same threads, in the same run.

#include <penstock/cpu_adam/adam.hpp>

#include "huge_buffer.hpp"
#include "measure/machine.hpp"
#include "measure/statistics.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace penstock::bench {
namespace {

using measure::Machine;
using measure::median;
using measure::spread;

constexpr double bytes_per_element = 28.0;  // state 12, gradient 2 read; state 12, parameter 2 written

/// One block of the floor: every stream's bytes are read or written once, by the widest vectors there are.
#if defined(__x86_64__)
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
void scale_block(float* state, const std::uint16_t* gradient, std::uint16_t* parameter, std::size_t count,
                 float factor, std::uint16_t increment) {
  float* __restrict p = state;
  float* __restrict m = state + count;
  float* __restrict v = state + 2 * count;
  std::uint16_t* __restrict out = parameter;
  constexpr std::size_t strip = 64, ahead = 512;  // the kernel's own distance
  for (std::size_t first = 0; first < count; first += strip) {
    for (std::size_t i = first + ahead; i < first + ahead + strip; i += 16) {
      __builtin_prefetch(p + i, 1);
      __builtin_prefetch(m + i, 1);
      __builtin_prefetch(v + i, 1);
    }
    for (std::size_t i = first + ahead; i < first + ahead + strip; i += 32) {
      __builtin_prefetch(gradient + i, 0);
      __builtin_prefetch(out + i, 1);
    }
    const std::size_t last = std::min(first + strip, count);
    for (std::size_t i = first; i < last; ++i) {
      // Loads before stores: p[i], m[i] and v[i] are 64 KiB apart, and a load waits for an earlier store
      // whose address has the same low 12 bits.
      const float new_p = p[i] * factor, new_m = m[i] * factor, new_v = v[i] * factor;
      const auto new_out = static_cast<std::uint16_t>(gradient[i] + increment);
      p[i] = new_p;
      m[i] = new_m;
      v[i] = new_v;
      out[i] = new_out;
    }
  }
}

struct Tensors {
  explicit Tensors(ElementCount count)
      : elements(count),
        state(tile_bytes(StateFormat::fp32, count).value()),
        gradient(ByteCount(2 * count.value())),
        parameter(ByteCount(2 * count.value())) {}

  [[nodiscard]] AdamTile tile() const {
    return {.state = state.span(),
            .gradient = gradient.span(),
            .parameter = parameter.span(),
            .elements = elements};
  }

  ElementCount elements;
  HugeBuffer state, gradient, parameter;
};

/// Bf16 noise of magnitude 2^-7 to 2^-6 as gradient, parameters of magnitude 1 to 2.
void fill(const Tensors& tensors, Workers& workers) {
  const auto noise = [](std::size_t i) {
    return static_cast<std::uint32_t>((i * 0x9e3779b97f4a7c15u) >> 40);
  };
  const auto gradient = tensors.gradient.span().as<std::uint16_t>();
  const auto initial = tensors.parameter.span().as<std::uint16_t>();
  workers.parallel_blocks(gradient.size(), [&](std::size_t first, std::size_t last) noexcept {
    for (std::size_t i = first; i < last; ++i) {
      const std::uint32_t bits = noise(i);
      gradient[i] = static_cast<std::uint16_t>((bits & 0x8000u) | 0x3c00u | (bits & 0x7fu));
      initial[i] = static_cast<std::uint16_t>((bits & 0x8000u) | 0x3f80u | (bits & 0x7fu));
    }
  });
  AdamTile tile = tensors.tile();
  HugeBuffer values(tile.parameter.size());
  std::copy_n(tile.parameter.data(), tile.parameter.size().value(), values.span().data());
  const auto initialized = initialize_tile(values.span(), DType::bf16, tile, &workers);
  PENSTOCK_CHECK(initialized.has_value());
}

void run_floor(const Tensors& tensors, Workers& workers, float factor) {
  const std::uint64_t block = block_elements.value(), elements = tensors.elements.value();
  const auto state = tensors.state.span().as<float>();
  const auto gradient = tensors.gradient.span().as<std::uint16_t>();
  const auto parameter = tensors.parameter.span().as<std::uint16_t>();
  workers.parallel_blocks(ceil_divide(elements, block), [&](std::size_t first, std::size_t last) noexcept {
    for (std::size_t b = first; b < last; ++b) {
      const std::uint64_t at = b * block;
      scale_block(&state[3 * at], &gradient[at], &parameter[at], std::min(block, elements - at), factor, 1);
    }
  });
}

double seconds_of(auto&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Row {
  std::uint32_t threads;
  double adam_seconds, floor_seconds, ratio, adam_spread, floor_spread, ratio_spread;
};

Row measure(const Tensors& tensors, std::uint32_t threads, int rounds, Isa isa) {
  Workers workers = Workers::create({.threads = threads}).value();
  const AdamExecution execution{.workers = &workers, .isa = isa};
  const volatile float one = 1.0f;  // not known to the compiler; the state stays as it is
  const AdamConfig config{.weight_decay = 0.01f};

  std::uint64_t step = 0;
  const auto adam = [&] { adam_step(config, ++step, 1.0f, tensors.tile(), execution).value(); };
  const auto floor = [&] { run_floor(tensors, workers, one); };
  adam();
  floor();
  std::vector<double> adam_seconds, floor_seconds, ratios;
  for (int round = 0; round < rounds; ++round) {  // the order alternates, so that drift favours neither
    const bool adam_first = round % 2 == 0;
    double first = adam_first ? seconds_of(adam) : seconds_of(floor);
    double second = adam_first ? seconds_of(floor) : seconds_of(adam);
    if (!adam_first) std::swap(first, second);
    adam_seconds.push_back(first);
    floor_seconds.push_back(second);
    ratios.push_back(second / first);
  }
  return {threads,        median(adam_seconds), median(floor_seconds),
          median(ratios), spread(adam_seconds), spread(floor_seconds),
          spread(ratios)};
}

std::string json(const Machine& machine, std::uint64_t elements, int rounds, Isa isa,
                 const std::vector<Row>& rows) {
  std::string text = fmt::format(
      R"({{"bench": "cpu_adam", "cpu": "{}", "cores": {}, "elements": {}, "rounds": {}, "isa": "{}", "rows": [)",
      machine.cpu, machine.cores, elements, rounds, to_string(isa));
  for (const Row& row : rows) {
    fmt::format_to(std::back_inserter(text),
                   R"({}{{"threads": {}, "adam_s": {:.6f}, "floor_s": {:.6f}, "ratio": {:.4f}, )"
                   R"("adam_spread": {:.4f}, "floor_spread": {:.4f}, "ratio_spread": {:.4f}}})",
                   &row == rows.data() ? "" : ", ", row.threads, row.adam_seconds, row.floor_seconds,
                   row.ratio, row.adam_spread, row.floor_spread, row.ratio_spread);
  }
  return text + "]}";
}

void print(const Machine& machine, std::uint64_t elements, int rounds, Isa isa,
           const std::vector<Row>& rows) {
  fmt::print("{}, {} cores, load {:.1f}, huge pages {}\n", machine.cpu, machine.cores, machine.load,
             machine.huge_pages);
  fmt::print(
      "AdamW, state fp32, gradient and parameter bf16, {} M parameters, {} rounds, medians, isa {} ({})\n",
      elements / 1'000'000, rounds, to_string(isa), isa == best_isa().isa ? best_isa().reason : "asked for");
  fmt::print("threads   adam G/s   adam GB/s   floor GB/s   floor/adam time   spread (adam, floor, ratio)\n");
  for (const Row& row : rows) {
    const double elements_g = static_cast<double>(elements) * 1e-9;
    fmt::print("{:7}   {:8.3f}   {:9.1f}   {:10.1f}   {:15.3f}   {:.1f} %, {:.1f} %, {:.1f} %\n", row.threads,
               elements_g / row.adam_seconds, elements_g * bytes_per_element / row.adam_seconds,
               elements_g * bytes_per_element / row.floor_seconds, row.ratio, 100 * row.adam_spread,
               100 * row.floor_spread, 100 * row.ratio_spread);
  }
}

int run(int argc, char** argv) {
  std::uint64_t elements = 64 << 20;
  std::vector<std::uint32_t> threads = {1, 2};
  int rounds = 21;
  bool as_json = false;
  const std::map<std::string, Isa> isas = {
      {"scalar", Isa::scalar}, {"v2", Isa::x86_64_v2}, {"v3", Isa::x86_64_v3}, {"v4", Isa::x86_64_v4}};
  std::string isa_name;
  CLI::App app("Adam on the CPU against a read-modify-write floor over the same bytes");
  app.add_option("--elements", elements, "parameters in the tile")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", threads, "thread counts to measure, the caller included")->delimiter(',');
  app.add_option("--rounds", rounds, "interleaved rounds")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  app.add_option("--isa", isa_name, "instruction set instead of the best one")->check(CLI::IsMember(isas));
  app.add_flag("--json", as_json, "print one line of JSON");
  CLI11_PARSE(app, argc, argv);
  const Isa isa = isa_name.empty() ? best_isa().isa : isas.at(isa_name);

  const Machine machine = measure::describe_machine();
  const Tensors tensors{ElementCount(elements)};
  Workers all = Workers::create({.threads = std::max(1u, std::thread::hardware_concurrency())}).value();
  fill(tensors, all);

  std::vector<Row> rows;
  for (const std::uint32_t count : threads) {
    std::fprintf(stderr, "measuring %u thread%s\n", count, count == 1 ? "" : "s");
    rows.push_back(measure(tensors, count, rounds, isa));
  }
  if (as_json) {
    fmt::print("{}\n", json(machine, elements, rounds, isa, rows));
  } else {
    print(machine, elements, rounds, isa, rows);
  }
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
