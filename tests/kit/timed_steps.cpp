#include "kit/timed_steps.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace penstock::zero::test {

namespace {

/// Units whose parameters, or states, were read from disk.
double units_read(TimedRank& rank, tiers::Purpose purpose) {
  const double bytes = static_cast<double>(rank.ledger().traffic(purpose).read.value());
  return bytes / (purpose == tiers::Purpose::parameter_shard ? 2.0 : 12.0) / unit_elements;
}

}  // namespace

double in_units(TimePoint time) {
  return std::chrono::duration<double>(time) / std::chrono::duration<double>(unit_takes);
}

TimedRank::Options machine() {
  TimedRank::Options options;
  options.config.dtype = options.config.grad_accum_dtype = DType::bf16;
  options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::cpu;
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    options.model.units.push_back(
        {.name = std::to_string(unit), .parameters = {{"weight", ElementCount(unit_elements), 0}}});
  }
  options.speeds = {.copy_to_device = unit_bytes_per_second, .copy_to_host = unit_bytes_per_second};
  options.disk = {.bytes_per_second = static_cast<std::uint64_t>(unit_bytes_per_second), .latency = {}};
  return options;
}

OffloadConfig on_disk() {
  return {.device = OffloadDevice::nvme, .nvme_paths = {"/disk"}};
}

TimedRank::Options with_device_updates() {
  TimedRank::Options options = machine();
  options.config.cpu_update_ratio = 0;
  options.config.penstock.tile_elements = ElementCount(unit_elements / 8);
  options.speeds.copy_to_device = options.speeds.copy_to_host = unit_bytes_per_second * 14;
  return options;
}

namespace {

Phases measure_micro_batch(TimedRank& rank, bool is_last) {
  Engine& engine = rank.engine();
  TimePoint forward{}, backward{};
  const TimePoint began = rank.now();
  const auto checkpoint = [&](std::uint32_t unit, CheckpointUse use) {
    return rank.has_checkpoints() ? engine.checkpoint(unit, use, rank.stream()).value() : CheckpointLease();
  };
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    const auto weights = engine.acquire(unit, rank.stream()).value();
    const CheckpointLease input = checkpoint(unit, CheckpointUse::write);
    rank.compute(unit_takes);
  }
  rank.mark(&forward);
  for (std::uint32_t unit = units; unit-- > 0;) {
    auto weights = engine.acquire(unit, rank.stream()).value();
    CheckpointLease input = checkpoint(unit, CheckpointUse::last_read);
    auto gradients = engine.gradients(unit, rank.stream()).value();
    // All gradients of these steps are 0: what the memory had before may be no number, with which a step is skipped.
    for (const GradientSlot& slot : gradients.slots()) rank.clear(slot.tensor.bytes);
    rank.compute(unit_takes);
    input.end();
    weights.end();
    engine.reduce(std::move(gradients), rank.stream()).value();
  }
  rank.mark(&backward);
  if (is_last) (void)engine.step().value();
  return {.forward = in_units(forward - began), .backward = in_units(backward - forward)};
}

}  // namespace

Phases measure_step(TimedRank& rank, std::uint32_t micro_batches) {
  rank.engine().begin_step({.micro_batches = micro_batches}).value();
  for (std::uint32_t i = 1; i < micro_batches; ++i) (void)measure_micro_batch(rank, /*is_last=*/false);
  return measure_micro_batch(rank, /*is_last=*/true);
}

Phases measure(const TimedRank::Options& options) {
  TimedRank rank(options);
  Phases phases;
  for (int step = 0; step < 4; ++step) {
    const double before = units_read(rank, tiers::Purpose::parameter_shard);
    rank.run_dry();
    phases = measure_step(rank);
    phases.parameter_reads = units_read(rank, tiers::Purpose::parameter_shard) - before;
  }
  return phases;
}

Period measure_period(const TimedRank::Options& options) {
  constexpr int warmup = 3, measured = 4;
  TimedRank rank(options);
  for (int step = 0; step < warmup; ++step) measure_step(rank);
  const auto now = [&] {
    return Period{.step = in_units(rank.now()),
                  .parameter_reads = units_read(rank, tiers::Purpose::parameter_shard),
                  .state_reads = units_read(rank, tiers::Purpose::optimizer_tile)};
  };
  const Period began = now();
  for (int step = 0; step < measured; ++step) measure_step(rank);
  const Period ended = now();
  return {.step = (ended.step - began.step) / measured,
          .parameter_reads = (ended.parameter_reads - began.parameter_reads) / measured,
          .state_reads = (ended.state_reads - began.state_reads) / measured};
}

}  // namespace penstock::zero::test
