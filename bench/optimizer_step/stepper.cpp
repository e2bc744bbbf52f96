#include "stepper.hpp"

#include <penstock/kernels/host_compute.hpp>

#include <fmt/format.h>
#include <algorithm>

namespace penstock::bench {

namespace {

double seconds_since(TimePoint began) {
  return std::chrono::duration<double>(Clock::steady().now() - began).count();
}

/// As a backward would. Seconds.
double write(const DeviceTensor& gradient) {
  const TimePoint began = Clock::steady().now();
  for (std::uint16_t& value : tiers::HostDevice::bytes(gradient.bytes).as<std::uint16_t>()) value = 0x3c00;
  return seconds_since(began);
}

}  // namespace

Result<std::unique_ptr<Stepper>> Stepper::create(const StepperOptions& options) {
  std::unique_ptr<Stepper> stepper(new Stepper);
  PENSTOCK_TRY(stepper->open(options));
  return stepper;
}

Stepper::~Stepper() {
  engine_.reset();
  stream_.reset();
}

Result<Stepper::Timing> Stepper::step() {
  Timing timing{};
  PENSTOCK_TRY(engine_->begin_step({}));
  // Landings go on while the next gradient is written: they take what the loop takes beyond the writing
  // alone.
  const TimePoint backward = Clock::steady().now();
  double writing = 0;
  for (std::uint32_t unit = units_; unit-- > 0;) {
    auto gradients = engine_->gradients(unit, *stream_);
    if (!gradients) return gradients.error();
    const DeviceTensor tensor = gradients->slots()[0].tensor;
    write(tensor);
    if (unit == units_ - 1) writing = write(tensor) * (units_ + 1);  // nothing lands yet
    PENSTOCK_TRY(engine_->reduce(std::move(*gradients), *stream_));
  }
  timing.landing = seconds_since(backward) - writing;

  const auto before = runtime_->ledger().traffic(tiers::Purpose::optimizer_tile);
  const TimePoint began = Clock::steady().now();
  auto outcome = engine_->step();
  if (!outcome) return outcome.error();
  PENSTOCK_TRY(runtime_->flush());
  const double waited = std::chrono::duration<double>(outcome->gradient_wait).count();
  timing.step = seconds_since(began) - waited;
  timing.landing += waited;
  const auto after = runtime_->ledger().traffic(tiers::Purpose::optimizer_tile);
  timing.read = after.read - before.read;
  timing.written = after.written - before.written;
  return timing;
}

Result<void> Stepper::open(const StepperOptions& options) {
  zero::Config config;
  config.offload_param.device = zero::OffloadDevice::cpu;
  config.offload_optimizer.device = options.device;
  if (options.device == zero::OffloadDevice::nvme) config.offload_optimizer.nvme_paths = {options.path};
  if (options.tile_elements > 0) config.penstock.tile_elements = ElementCount(options.tile_elements);
  config.penstock.tiles_in_flight = options.tiles_in_flight;
  config.penstock.host_budget = ByteCount(options.host_mib << 20);
  config.penstock.integrity = options.integrity ? zero::Integrity::checksum : zero::Integrity::off;
  config.penstock.state_format = options.format;
  zero::ModelLayout model;
  for (std::uint64_t left = options.parameters; left > 0;) {
    const std::uint64_t count = std::min(left, options.unit_parameters);
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
  auto workers = parallel::Workers::create({.threads = options.threads});
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

}  // namespace penstock::bench
