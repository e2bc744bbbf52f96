#include "stepper.hpp"

#include <penstock/tiers/device/host_device.hpp>

#include <fmt/format.h>
#include <algorithm>

namespace penstock::bench {

namespace {

double seconds_since(TimePoint began) {
  return std::chrono::duration<double>(Clock::steady().now() - began).count();
}

/// Fills the gradient as a backward pass would. Returns seconds.
double write(const DeviceTensor& gradient, tiers::Stream& stream) {
  const TimePoint began = Clock::steady().now();
  stream.handle().host_queue()->enqueue([bytes = tiers::HostDevice::bytes(gradient.bytes)] {
    std::ranges::fill(bytes.as<std::uint16_t>(), std::uint16_t{0x3c00});
  });
  return seconds_since(began);
}

/// Copies take the time of a PCIe 5 link, as measured on an H100.
zero::Accelerator simulated_accelerator(ByteCount memory) {
  return zero::make_host_accelerator({.memory = memory,
                                      .mode = tiers::HostDevice::Mode::threaded,
                                      .location = tiers::DeviceMemory::separate,
                                      .speeds = {.copy_to_device = 54e9, .copy_to_host = 54e9}});
}

}  // namespace

Result<std::unique_ptr<Stepper>> Stepper::create(const StepperOptions& options) {
  std::unique_ptr<Stepper> stepper(new Stepper);
  PENSTOCK_TRY(stepper->open(options));
  return stepper;
}

Result<Stepper::Timing> Stepper::step() {
  Timing timing{};
  PENSTOCK_TRY(rank_->engine().begin_step({}));
  // reduce() is asynchronous and overlaps the writing of the next gradient. Its cost is the loop's time minus
  // the time that the writing takes alone.
  const TimePoint backward = Clock::steady().now();
  double writing = 0;
  const auto units = static_cast<std::uint32_t>(model_.units.size());
  for (std::uint32_t unit = units; unit-- > 0;) {
    auto gradients = rank_->engine().gradients(unit, *stream_);
    if (!gradients) return gradients.error();
    const DeviceTensor tensor = gradients->slots()[0].tensor;
    write(tensor, *stream_);
    if (unit == units - 1) writing = write(tensor, *stream_) * (units + 1);  // no reduce() is running yet
    PENSTOCK_TRY(rank_->engine().reduce(std::move(*gradients), *stream_));
  }
  timing.gradient_accumulation = seconds_since(backward) - writing;

  const auto before = rank_->runtime().ledger().traffic(tiers::Purpose::optimizer_tile);
  const TimePoint began = Clock::steady().now();
  auto outcome = rank_->engine().step();
  if (!outcome) return outcome.error();
  PENSTOCK_TRY(rank_->engine().finish_update());
  rank_->runtime().wait_for_stores(0);  // flush() would also store the tiles that host memory is the home of
  PENSTOCK_TRY(rank_->runtime().check_stores());
  const double waited = std::chrono::duration<double>(outcome->gradient_wait).count();
  timing.step = seconds_since(began) - waited;
  timing.gradient_accumulation += waited;
  const auto after = rank_->runtime().ledger().traffic(tiers::Purpose::optimizer_tile);
  timing.read = after.read - before.read;
  timing.written = after.written - before.written;
  timing.on_device = outcome->updated_on_device;
  return timing;
}

Result<void> Stepper::open(const StepperOptions& options) {
  zero::Config& config = config_;
  config.stage = 3;
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.offload_param.device = zero::OffloadDevice::cpu;
  config.offload_optimizer.device = options.device;
  if (options.device == zero::OffloadDevice::nvme) config.offload_optimizer.nvme_paths = {options.path};
  config.penstock.io_deadline_seconds = static_cast<std::uint32_t>(
      std::chrono::duration_cast<std::chrono::seconds>(options.io_deadline).count());
  config.cpu_update_ratio = static_cast<float>(options.cpu_ratio);
  if (options.tile_elements > 0) config.penstock.tile_elements = ElementCount(options.tile_elements);
  config.penstock.tiles_in_flight = options.tiles_in_flight;
  config.penstock.host_budget = ByteCount(options.host_mib << 20);
  config.penstock.integrity = options.integrity ? zero::Integrity::checksum : zero::Integrity::off;
  config.penstock.state_format = options.format;
  constexpr std::uint64_t units_max = 1 << 16;
  if (options.parameters / options.unit_parameters >= units_max) {
    return Error::invalid_argument("optimizer_step")
        .object("--parameters")
        .reason("they are too many units")
        .wanted("less than " + std::to_string(units_max) + " times --unit-parameters")
        .got(options.parameters);
  }
  zero::ModelLayout& model = model_;
  for (std::uint64_t left = options.parameters; left > 0;) {
    const std::uint64_t count = std::min(left, options.unit_parameters);
    model.units.push_back({.name = fmt::format("unit{}", model.units.size()),
                           .parameters = {{"weight", ElementCount(count), 0}}});
    left -= count;
  }

  auto workers = parallel::Workers::create({.threads = options.threads});
  if (!workers) return workers.error();
  workers_ = std::move(*workers);
  zero::Rank::Options of_rank{.config = config, .model = model, .workers = &*workers_};
  if (options.cpu_ratio < 1) of_rank.make_accelerator = simulated_accelerator;
  auto rank = zero::Rank::create(std::move(of_rank));
  if (!rank) return rank.error();
  rank_ = std::move(*rank);
  auto stream = rank_->device().create_stream();
  if (!stream) return stream.error();
  stream_ = std::move(*stream);
  return rank_->engine().initialize([](zero::ParameterId, std::uint64_t, std::span<float> values) {
    std::fill(values.begin(), values.end(), 0.5f);
  });
}

}  // namespace penstock::bench
