// optimizer_step: measures how fast Engine::step() updates a model whose optimizer states are on disk. The rate
// is given as a fraction of the limit for mixed reads and writes of the swap file, measured before and after each step.
#include "background_work.hpp"
#include "simulated_step.hpp"
#include "state_formats.hpp"
#include "stepper.hpp"
#include "swap_file_benchmark.hpp"
#include "turns.hpp"

#include "measure/command_line.hpp"
#include "measure/machine.hpp"
#include "measure/run_main.hpp"
#include "measure/statistics.hpp"
#include "measure/storage_device.hpp"

#include <penstock/base/check.hpp>
#include <penstock/kernels/variants.hpp>

#include <fmt/format.h>
#include <sys/resource.h>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <thread>

namespace penstock::bench {
namespace {

using measure::median;
using measure::spread;

const std::map<std::string, std::vector<bool>> switches = {
    {"off", {false}}, {"on", {true}}, {"both", {false, true}}};

const std::map<std::string, zero::OffloadDevice> devices = {{"cpu", zero::OffloadDevice::cpu},
                                                            {"nvme", zero::OffloadDevice::nvme}};

struct Arguments {
  StepperOptions model;  // contestants override format and integrity
  std::uint32_t rounds = 5;
  std::string device = "nvme";
  std::string integrity = "on";
  std::vector<std::string> formats = {"fp32"};
  bool turns = false, simulate = false;
};

std::string name_of(const StepperOptions& options) {
  return std::string(to_string(options.format)) + (options.integrity ? "" : ", no checksums");
}

struct Contestant {
  std::string name;
  std::unique_ptr<Stepper> stepper;
  std::unique_ptr<SwapFileBenchmark> disk;  // of the stepper's swap file
  std::unique_ptr<Stepper> in_memory;       // the same states in host memory; null: steps are not simulated
  zero::simulate::PlannedStep planned;
  double last_step = 0;    // seconds of the last one on disk, the warm-up too
  ElementCount on_device;  // of a step, updated by the simulated accelerator
  std::vector<double> seconds, rates, limits, ratios, simulated;
};

/// The disk's rates, and how long the update takes in memory.
struct Calibration {
  swap::DiskRates disk;
  double update = 0;  // seconds; 0: it is not simulated
};
/// While the disk is measured, steps in memory take as much of the time as they do in a step on disk: transfers and the
/// update share the cores.
Result<Calibration> calibrate(Contestant& contestant) {
  constexpr std::chrono::milliseconds duration(600);
  if (!contestant.in_memory) {
    PENSTOCK_TRY_ASSIGN(const auto disk, contestant.disk->measure(duration));
    return Calibration{disk};
  }
  PENSTOCK_TRY_ASSIGN(const auto alone, contestant.in_memory->step());
  BackgroundWork beside([&contestant]() -> Result<void> {
    const TimePoint began = Clock::steady().now();
    PENSTOCK_TRY_ASSIGN(const auto timing, contestant.in_memory->step());
    if (timing.step == 0) return ok();
    // Writing gradients loads the cores too: with it they work for the update's part of a step.
    const std::chrono::duration<double> took = Clock::steady().now() - began;
    std::this_thread::sleep_for(took * (std::max(1.0, contestant.last_step / timing.step) - 1));
    return ok();
  });
  const auto disk = contestant.disk->measure(duration);
  PENSTOCK_TRY(beside.end());
  if (!disk) return disk.error();
  return Calibration{*disk, alone.step};
}

/// One step between two measurements of the disk's limit; round 0 is the warm-up.
Result<void> take_part(Contestant& contestant, std::uint32_t round) {
  PENSTOCK_TRY_ASSIGN(const auto before, calibrate(contestant));
  PENSTOCK_TRY_ASSIGN(const auto timing, contestant.stepper->step());
  contestant.last_step = timing.step;
  PENSTOCK_TRY_ASSIGN(const auto after, calibrate(contestant));
  if (round == 0) return ok();
  contestant.on_device = timing.on_device;
  const swap::DiskRates disk = mean(before.disk, after.disk);
  const double limit = disk.mixed / 1e9;
  const double rate = static_cast<double>((timing.read + timing.written).value()) / timing.step / 1e9;
  contestant.seconds.push_back(timing.step);
  contestant.rates.push_back(rate);
  contestant.limits.push_back(limit);
  contestant.ratios.push_back(rate / limit);
  fmt::print("{:>6}  {:<26}{:>8.2f}{:>12}{:>12}{:>12.2f}{:>12.2f}{:>8.2f}", round, contestant.name,
             timing.step, to_string(timing.read), to_string(timing.written), rate, limit, rate / limit);
  if (contestant.in_memory) {
    PENSTOCK_TRY_ASSIGN(const auto simulated, predict_step(contestant.planned, disk,
                                                           {.update = (before.update + after.update) / 2}));
    contestant.simulated.push_back(simulated.seconds / timing.step);
    fmt::print("{:>12.2f}{:>8.2f}", simulated.seconds, contestant.simulated.back());
  }
  fmt::print("\n");
  return ok();
}

/// Bytes that this process has read from and written to block devices, from /proc/self/io.
struct DiskBytes {
  std::uint64_t read = 0, written = 0;
  static DiskBytes now() {
    DiskBytes bytes;
    std::ifstream counts("/proc/self/io");
    for (std::string word; counts >> word;) {
      if (word == "read_bytes:") counts >> bytes.read;
      if (word == "write_bytes:") counts >> bytes.written;
    }
    return bytes;
  }
};

/// Measures the first of arguments.formats only.
Result<void> take_turns(const Arguments& arguments) {
  StepperOptions options = arguments.model;
  options.format = state_formats.at(arguments.formats.front());
  options.integrity = arguments.integrity != "off";
  PENSTOCK_TRY_ASSIGN(auto stepper, Stepper::create(options));
  Result<void> done = ok();
  serve_turns([&]() -> std::optional<Json::Value> {
    const DiskBytes before = DiskBytes::now();
    const auto timing = stepper->step();
    const DiskBytes after = DiskBytes::now();
    if (!timing) {
      done = timing.error();
      return std::nullopt;
    }
    rusage usage;
    PENSTOCK_CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    Json::Value figures;
    figures["step"] = timing->step;
    figures["gradient_accumulation"] = timing->gradient_accumulation;
    figures["read"] = Json::UInt64(after.read - before.read);
    figures["written"] = Json::UInt64(after.written - before.written);
    figures["resident_peak"] = Json::UInt64(usage.ru_maxrss) * 1024;
    return figures;
  });
  return done;
}

Result<void> run(const Arguments& arguments) {
  if (arguments.model.device != zero::OffloadDevice::nvme) {
    return Error::invalid_argument("optimizer_step")
        .object("--device")
        .reason("without a disk there is no limit to compare with; --turns measures without comparing")
        .wanted("nvme, or --turns")
        .got(arguments.device);
  }
  if (arguments.simulate && arguments.model.cpu_ratio < 1) {
    return Error::invalid_argument("optimizer_step")
        .object("--simulate")
        .reason("it predicts updates on the CPU alone")
        .wanted("--cpu-ratio 1")
        .got(fmt::format("{}", arguments.model.cpu_ratio));
  }
  const measure::Machine machine = measure::describe_machine();
  PENSTOCK_TRY_ASSIGN(const auto storage,
                      measure::describe_storage(arguments.model.path, arguments.model.io_deadline));
  fmt::print("{}, {} cores, load {:.1f}; {}; SIMD {}\n", machine.cpu, machine.cores, machine.load,
             measure::to_string(storage), to_string(best_isa().isa));
  if (storage.virtual_because) fmt::print("note: {}\n", *storage.virtual_because);
  if (storage.cached_because) {
    fmt::print("note: the figures measure the page cache, not a disk: {}\n", *storage.cached_because);
  }

  std::vector<Contestant> contestants;
  for (const std::string& format : arguments.formats) {
    for (const bool integrity : switches.at(arguments.integrity)) {
      StepperOptions options = arguments.model;
      options.format = state_formats.at(format);
      options.integrity = integrity;
      PENSTOCK_TRY_ASSIGN(auto stepper, Stepper::create(options));
      PENSTOCK_TRY_ASSIGN(auto disk, SwapFileBenchmark::create(stepper->runtime().paths().front(),
                                                               arguments.model.io_deadline));
      contestants.push_back(
          {.name = name_of(options), .stepper = std::move(stepper), .disk = std::move(disk)});
      if (!arguments.simulate) continue;
      PENSTOCK_TRY_ASSIGN(contestants.back().planned, contestants.back().stepper->planned_step());
      options.device = zero::OffloadDevice::cpu;
      options.host_mib = 0;
      PENSTOCK_TRY_ASSIGN(contestants.back().in_memory, Stepper::create(options));
    }
  }
  const swap::PathReport path = contestants.front().stepper->runtime().paths().front();
  fmt::print("engine {}, direct I/O {}{}\n", path.engine, path.file.direct ? "yes" : "NO",
             path.notes.empty() ? "" : "; " + path.notes);
  for (const Contestant& one : contestants) {
    const auto& plan = one.stepper->plan();
    const ByteCount per_step = plan.tile_reads + plan.tile_writes;
    fmt::print(
        "{}: {} parameters, {} of {} tiles kept in host memory; a step must move {} ({:.2f} B a "
        "parameter)\n",
        one.name, to_string(ElementCount(arguments.model.parameters)), plan.tiles_in_host, plan.tiles,
        to_string(per_step),
        static_cast<double>(per_step.value()) / static_cast<double>(arguments.model.parameters));
  }

  fmt::print("\n{:>6}  {:<26}{:>8}{:>12}{:>12}{:>12}{:>12}{:>8}{}\n", "round", "states", "step s", "read",
             "written", "GB/s", "disk GB/s", "ratio",
             arguments.simulate ? fmt::format("{:>12}{:>8}", "simulated", "of it") : "");
  for (std::uint32_t round = 0; round <= arguments.rounds; ++round) {
    for (std::size_t i = 0; i < contestants.size(); ++i) {  // the first one rotates
      Contestant& contestant = contestants[(i + round) % contestants.size()];
      PENSTOCK_TRY(take_part(contestant, round));
    }
  }
  for (const Contestant& one : contestants) {
    fmt::print("{:>6}  {:<26}{:>8.2f}{:>36.2f}{:>12.2f}{:>8.2f}   spread of the ratio {:.0f} %", "median",
               one.name, median(one.seconds), median(one.rates), median(one.limits), median(one.ratios),
               100 * spread(one.ratios));
    if (one.in_memory)
      fmt::print("; simulated {:.2f} of it, spread {:.0f} %", median(one.simulated),
                 100 * spread(one.simulated));
    if (!one.on_device.is_zero())
      fmt::print("; {} elements a step are updated by the simulated accelerator", to_string(one.on_device));
    fmt::print("\n");
  }
  const Contestant& first = contestants.front();
  for (std::size_t i = 1; i < contestants.size(); ++i) {
    const auto ratio = measure::center(measure::ratios(first.seconds, contestants[i].seconds));
    fmt::print("{}: {:.3f} times as fast as {}, the median of {} rounds, spread {:.0f} %\n",
               contestants[i].name, ratio.median, first.name, arguments.rounds, 100 * ratio.spread);
  }
  return ok();
}

int main_body(int argc, char** argv) {
  Arguments arguments;
  measure::CommandLine app("The optimizer step on disk, against the swap file's own limit");
  app.add_option("--path", arguments.model.path, "swap directory").show_default();
  measure::add_io_deadline(app, arguments.model.io_deadline);
  app.add_option("--parameters", arguments.model.parameters, "parameters of the model").show_default();
  app.add_option("--unit-parameters", arguments.model.unit_parameters, "parameters of a unit")
      .range(std::uint64_t{1} << 14, std::uint64_t{1} << 40)
      .show_default();
  app.add_option("--tile-elements", arguments.model.tile_elements,
                 fmt::format("a multiple of {}; 0: the default of each format",
                             penstock::cpu_adam::block_elements.value()))
      .show_default();
  app.add_option("--tiles-in-flight", arguments.model.tiles_in_flight, "tiles read ahead").show_default();
  app.add_option("--host-mib", arguments.model.host_mib,
                 "host budget in MiB; 0: as planned, all tiles on disk")
      .show_default();
  app.add_option("--threads", arguments.model.threads, "workers").show_default();
  measure::add_rounds(app, arguments.rounds);
  app.add_option("--integrity", arguments.integrity,
                 "checksums on, off, or both: two models, measured alternately, and the ratio of their times")
      .show_default()
      .one_of(switches);
  app.add_option("--device", arguments.device, "where optimizer states are").show_default().one_of(devices);
  app.add_option(
         "--cpu-ratio", arguments.model.cpu_ratio,
         "the part of the tiles that the CPU updates; the others pass through a simulated accelerator, whose "
         "kernels run on the CPU too")
      .number_range(0, 1)
      .show_default();
  app.add_flag("--turns", arguments.turns,
               "run one step for each line of standard input and print its figures as a line of JSON");
  app.add_flag(
      "--simulate", arguments.simulate,
      "also measure the step in memory, and predict that on disk from it and the disk's rates beside it");
  app.add_option("--format", arguments.formats, "state formats, measured alternately")
      .show_default()
      .delimiter(',')
      .one_of(state_formats);
  if (const auto status = app.parse(argc, argv)) return *status;
  arguments.model.device = devices.at(arguments.device);
  return measure::exit_status(arguments.turns ? take_turns(arguments) : run(arguments));
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  return penstock::measure::run_main([&] { return penstock::bench::main_body(argc, argv); });
}
