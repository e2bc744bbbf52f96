// optimizer_step: how fast Engine::step() updates a model whose optimizer states are on disk, as a fraction
// of the disk's own mixed limit for the bytes it must move, measured in turns with it.
#include "measure/machine.hpp"
#include "measure/statistics.hpp"
#include "measure/storage_device.hpp"

#include <penstock/kernels/host_compute.hpp>
#include <penstock/kernels/isa.hpp>
#include <penstock/swap/path_load.hpp>
#include <penstock/tiers/host_device.hpp>
#include <penstock/zero/engine.hpp>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <map>

namespace penstock::bench {
namespace {

using measure::median;
using measure::spread;

const std::map<std::string, std::vector<bool>> switches = {
    {"off", {false}}, {"on", {true}}, {"both", {false, true}}};
const std::map<std::string, StateFormat> formats = {{"fp32", StateFormat::fp32},
                                                    {"split", StateFormat::split},
                                                    {"split_bf16", StateFormat::split_bf16},
                                                    {"split_q8", StateFormat::split_q8}};

struct Arguments {
  std::filesystem::path path = ".";
  std::uint64_t parameters = 128'000'000;
  std::uint64_t unit_parameters = 8'000'000;
  std::uint64_t tile_elements = 0;
  std::uint32_t tiles_in_flight = 4;
  std::uint64_t host_mib = 0;
  std::uint32_t threads = 2;
  std::uint32_t rounds = 5;
  std::string integrity = "on";
  std::vector<std::string> formats = {"fp32"};
};

/// What the models that are stepped in turns differ in.
struct Variant {
  StateFormat format;
  bool integrity;

  [[nodiscard]] std::string name() const {
    return std::string(to_string(format)) + (integrity ? "" : ", no checksums");
  }
};

/// One rank that does nothing but optimizer steps.
class Stepper {
 public:
  static Result<std::unique_ptr<Stepper>> create(const Arguments& arguments, const Variant& variant) {
    std::unique_ptr<Stepper> stepper(new Stepper);
    PENSTOCK_TRY(stepper->open(arguments, variant));
    return stepper;
  }
  ~Stepper() {
    engine_.reset();
    stream_.reset();
  }

  struct Timing {
    double seconds;
    ByteCount read, written;
  };
  /// Gives every unit a gradient, and times step() with its writes.
  Result<Timing> step() {
    PENSTOCK_TRY(engine_->begin_step({}));
    for (std::uint32_t unit = units_; unit-- > 0;) {
      auto gradients = engine_->gradients(unit, *stream_);
      if (!gradients) return gradients.error();
      const DeviceTensor tensor = gradients->slots()[0].tensor;
      for (std::uint16_t& value : tiers::HostDevice::bytes(tensor.bytes).as<std::uint16_t>()) value = 0x3c00;
      PENSTOCK_TRY(engine_->reduce(std::move(*gradients), *stream_));
    }
    PENSTOCK_TRY(runtime_->drain());
    const auto before = runtime_->ledger().traffic(tiers::Purpose::optimizer_tile);
    const TimePoint began = Clock::steady().now();
    auto outcome = engine_->step();
    if (!outcome) return outcome.error();
    PENSTOCK_TRY(runtime_->drain());
    const std::chrono::duration<double> elapsed = Clock::steady().now() - began;
    const auto after = runtime_->ledger().traffic(tiers::Purpose::optimizer_tile);
    return Timing{elapsed.count(), after.read - before.read, after.written - before.written};
  }
  const zero::MemoryPlan& plan() const { return plan_; }
  swap::Runtime& runtime() { return *runtime_; }

 private:
  Stepper() = default;

  Result<void> open(const Arguments& arguments, const Variant& variant) {
    zero::Config config;
    config.offload_param.device = zero::OffloadDevice::cpu;
    config.offload_optimizer = {.device = zero::OffloadDevice::nvme, .nvme_paths = {arguments.path}};
    if (arguments.tile_elements > 0) config.penstock.tile_elements = ElementCount(arguments.tile_elements);
    config.penstock.tiles_in_flight = arguments.tiles_in_flight;
    config.penstock.host_budget = ByteCount(arguments.host_mib << 20);
    config.penstock.integrity = variant.integrity ? zero::Integrity::checksum : zero::Integrity::off;
    config.penstock.state_format = variant.format;
    zero::ModelLayout model;
    for (std::uint64_t left = arguments.parameters; left > 0;) {
      const std::uint64_t count = std::min(left, arguments.unit_parameters);
      model.units.push_back({.name = fmt::format("unit{}", model.units.size()),
                             .parameters = {{"weight", ElementCount(count), 0}}});
      left -= count;
    }
    units_ = static_cast<std::uint32_t>(model.units.size());

    auto plan = zero::plan_memory(config, model, 1, 1);
    if (!plan) return plan.error();
    plan_ = *plan;
    auto runtime = swap::Runtime::create(plan_.runtime_options(config, 0));
    if (!runtime) return runtime.error();
    runtime_ = std::move(*runtime);
    device_ = std::make_unique<tiers::HostDevice>(tiers::HostDevice::Options{.memory = plan_.device_budget});
    compute_ = kernels::make_host_compute();
    auto stream = device_->create_stream();
    if (!stream) return stream.error();
    stream_ = std::move(*stream);
    auto communicator = group_->join(0, *device_, *compute_);
    if (!communicator) return communicator.error();
    communicator_ = std::move(*communicator);
    auto workers = Workers::create({.threads = arguments.threads});
    if (!workers) return workers.error();
    workers_ = std::move(*workers);
    auto engine = zero::Engine::create({.runtime = runtime_.get(),
                                        .device = device_.get(),
                                        .compute = compute_.get(),
                                        .communicator = communicator_.get(),
                                        .workers = &*workers_,
                                        .config = config,
                                        .model = model,
                                        .plan = plan_});
    if (!engine) return engine.error();
    engine_ = std::move(*engine);
    return engine_->initialize([](zero::ParameterId, std::uint64_t, std::span<float> values) {
      std::fill(values.begin(), values.end(), 0.5f);
    });
  }

  std::uint32_t units_ = 0;
  zero::MemoryPlan plan_;
  std::shared_ptr<zero::InProcessGroup> group_ = zero::InProcessGroup::create(1);
  std::unique_ptr<swap::Runtime> runtime_;
  std::unique_ptr<tiers::HostDevice> device_;
  std::unique_ptr<Compute> compute_;
  std::unique_ptr<tiers::Stream> stream_;
  std::unique_ptr<zero::Communicator> communicator_;
  std::optional<Workers> workers_;
  std::unique_ptr<zero::Engine> engine_;
};

struct Contestant {
  std::string name;
  std::unique_ptr<Stepper> stepper;
  std::vector<double> seconds, rates, limits, ratios;
};

/// One step between two looks at the disk's limit; round 0 warms up.
Result<void> take_part(Contestant& contestant, swap::PathLoad& load, std::uint32_t round) {
  const auto before = load.run(swap::LoadPattern::mixed, std::chrono::milliseconds(600));
  if (!before) return before.error();
  const auto timing = contestant.stepper->step();
  if (!timing) return timing.error();
  const auto after = load.run(swap::LoadPattern::mixed, std::chrono::milliseconds(600));
  if (!after) return after.error();
  if (round == 0) return ok();
  const double limit = (before->bytes_per_second() + after->bytes_per_second()) / 2e9;
  const double rate = static_cast<double>((timing->read + timing->written).value()) / timing->seconds / 1e9;
  contestant.seconds.push_back(timing->seconds);
  contestant.rates.push_back(rate);
  contestant.limits.push_back(limit);
  contestant.ratios.push_back(rate / limit);
  fmt::print("{:>6}  {:<26}{:>8.2f}{:>12}{:>12}{:>12.2f}{:>12.2f}{:>8.2f}\n", round, contestant.name,
             timing->seconds, to_string(timing->read), to_string(timing->written), rate, limit, rate / limit);
  return ok();
}

Result<void> run(const Arguments& arguments) {
  const measure::Machine machine = measure::describe_machine();
  const measure::StorageDevice storage = measure::describe_storage(arguments.path);
  fmt::print("{}, {} cores, load {:.1f}; {}; SIMD {}\n", machine.cpu, machine.cores, machine.load,
             measure::to_string(storage, arguments.path), to_string(best_isa().isa));
  if (storage.virtual_because) fmt::print("note: {}\n", *storage.virtual_because);
  const auto cached = measure::page_cache_because(arguments.path);
  if (!cached) return cached.error();
  if (*cached) fmt::print("note: these are figures of the page cache, not of a disk: {}\n", **cached);

  std::vector<Contestant> contestants;
  for (const std::string& format : arguments.formats) {
    for (const bool integrity : switches.at(arguments.integrity)) {
      const Variant variant{formats.at(format), integrity};
      auto stepper = Stepper::create(arguments, variant);
      if (!stepper) return stepper.error();
      contestants.push_back({.name = variant.name(), .stepper = std::move(*stepper)});
    }
  }
  auto load = swap::PathLoad::create({.paths = {{.directory = arguments.path, .capacity = 1_GiB}}});
  if (!load) return load.error();
  const swap::Path& path = *contestants.front().stepper->runtime().paths().front();
  fmt::print("engine {}, direct I/O {}{}\n", path.engine_name(), path.file().direct ? "yes" : "NO",
             path.notes().empty() ? "" : "; " + path.notes());
  for (const Contestant& one : contestants) {
    const auto& plan = one.stepper->plan();
    const ByteCount per_step = plan.tile_reads + plan.tile_writes;
    fmt::print(
        "{}: {} parameters, {} of {} tiles at home in host memory; a step must move {} ({:.2f} B a "
        "parameter)\n",
        one.name, to_string(ElementCount(arguments.parameters)), plan.tiles_in_host, plan.tiles,
        to_string(per_step),
        static_cast<double>(per_step.value()) / static_cast<double>(arguments.parameters));
  }

  fmt::print("\n{:>6}  {:<26}{:>8}{:>12}{:>12}{:>12}{:>12}{:>8}\n", "round", "states", "step s", "read",
             "written", "GB/s", "disk GB/s", "ratio");
  for (std::uint32_t round = 0; round <= arguments.rounds; ++round) {
    for (std::size_t i = 0; i < contestants.size(); ++i) {  // who goes first rotates
      Contestant& contestant = contestants[(i + round) % contestants.size()];
      PENSTOCK_TRY(take_part(contestant, **load, round));
    }
  }
  for (const Contestant& one : contestants) {
    fmt::print("{:>6}  {:<26}{:>8.2f}{:>36.2f}{:>12.2f}{:>8.2f}   spread of the ratio {:.0f} %\n", "median",
               one.name, median(one.seconds), median(one.rates), median(one.limits), median(one.ratios),
               100 * spread(one.ratios));
  }
  const Contestant& first = contestants.front();
  for (std::size_t i = 1; i < contestants.size(); ++i) {
    const auto ratio = measure::center(measure::ratios(first.seconds, contestants[i].seconds));
    fmt::print("{}: {:.3f} times as fast as {}, the median of {} rounds, spread {:.0f} %\n",
               contestants[i].name, ratio.median, first.name, arguments.rounds, 100 * ratio.spread);
  }
  return ok();
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  penstock::bench::Arguments arguments;
  CLI::App app("The optimizer step on disk, against the disk's own limit");
  app.add_option("--path", arguments.path, "swap directory")->capture_default_str();
  app.add_option("--parameters", arguments.parameters, "of the model")->capture_default_str();
  app.add_option("--unit-parameters", arguments.unit_parameters, "of a unit")->capture_default_str();
  app.add_option("--tile-elements", arguments.tile_elements, "a multiple of 16384; 0: as each format has it")
      ->capture_default_str();
  app.add_option("--tiles-in-flight", arguments.tiles_in_flight, "read ahead")->capture_default_str();
  app.add_option("--host-mib", arguments.host_mib, "host budget; 0: as planned, all tiles on disk")
      ->capture_default_str();
  app.add_option("--threads", arguments.threads, "workers")->capture_default_str();
  app.add_option("--rounds", arguments.rounds, "timed rounds")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--integrity", arguments.integrity,
                 "checksums on, off, or both: two models, in turns, and the ratio of their times")
      ->capture_default_str()
      ->check(CLI::IsMember(penstock::bench::switches));
  app.add_option("--format", arguments.formats, "state formats, in turns")
      ->capture_default_str()
      ->delimiter(',')
      ->check(CLI::IsMember(penstock::bench::formats));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (auto done = penstock::bench::run(arguments); !done) {
    fmt::print(stderr, "error: {}\n", done.error().message());
    return 1;
  }
  return 0;
}
