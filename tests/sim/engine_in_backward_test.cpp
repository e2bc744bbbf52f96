// penstock.update_in_backward: shards are updated while the backward of other units runs.
#include "kit/fault_runs.hpp"
#include "kit/same_runs.hpp"
#include "kit/seeds.hpp"
#include "sim/in_backward_runs.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

using Point = RunOptions::ProgramPoint;

TEST(UpdateInBackward, GivesTheBitsOfOneAfterIt) {
  for (const std::uint32_t ranks : {1u, 2u, 3u}) {
    for (const auto tier : {OffloadDevice::cpu, OffloadDevice::nvme}) {
      for (const auto memory : {tiers::DeviceMemory::host, tiers::DeviceMemory::separate}) {
        for (const std::uint32_t micro_batches : {1u, 3u}) {
          SCOPED_TRACE(std::to_string(ranks) + " ranks, tier " + std::to_string(int(tier)) + ", memory " +
                       std::to_string(int(memory)) + ", " + std::to_string(micro_batches));
          RunOptions options = in_backward(ranks, tier);
          options.device_memory = memory;
          options.micro_batches = micro_batches;
          expect_same(train(options), train(after_it(options)));
        }
      }
    }
  }
}

constexpr RunFormat formats[] = {{cpu_adam::StateFormat::fp32},
                                 {cpu_adam::StateFormat::fp32, DType::fp32},
                                 {cpu_adam::StateFormat::split},
                                 {cpu_adam::StateFormat::split_q8},
                                 narrow_formats[0]};

/// Takes longer than what the trainer does meanwhile.
tiers::FaultPlan slow(tiers::IoOperation operation) {
  return {{.operation = operation,
           .count = 1'000'000,
           .effect = tiers::Fault::Effect::delay,
           .delay = std::chrono::milliseconds(100)}};
}

/// With little memory, in a simulated order.
RunOptions simulated(std::uint64_t seed) {
  RunOptions options = in_backward(1 + seed % 3, OffloadDevice::nvme);
  options.micro_batches = 1 + seed % 2;
  if (seed % 3 == 0) options.model = model_of_long_units();
  if (seed % 4 < 2) options.device_memory = tiers::DeviceMemory::separate;
  formats[seed % std::size(formats)].set(options.config);
  if (options.device_memory == tiers::DeviceMemory::separate)
    options.config.cpu_update_ratio = seed % 8 == 0 ? 0.5f : 1.0f;
  options.config.penstock.host_budget = smallest_host_budget(options) + 150_KiB * (seed % 7);
  options.seed = seed;
  return options;
}

TEST(UpdateInBackward, GivesTheSameBitsInEverySimulatedOrder) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 60)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const RunOptions options = simulated(seed);
    RunOptions in_memory = after_it(options);
    in_memory.config.offload_param.device = in_memory.config.offload_optimizer.device = OffloadDevice::cpu;
    in_memory.config.penstock.host_budget = {};
    expect_same(train(options), train(in_memory));
  }
}

TEST(UpdateInBackward, GivesTheSameBitsOnThreadsAndRealDisks) {
  for (const std::uint32_t ranks : {1u, 3u}) {
    RunOptions options = in_backward(ranks, OffloadDevice::nvme);
    options.threads = 2;
    options.steps = 8;
    const RunResult expected = train(after_it(options));
    expect_same(train(options), expected);
    options.streams = {.copy_to_device = 1e9, .copy_to_host = 0.3e9, .compute = 0.5e9};
    options.device_memory = tiers::DeviceMemory::separate;
    expect_same(train(options), expected);
  }
}

// Units that get no gradient are not updated, and a unit whose parameter another one shares waits for both.
TEST(UpdateInBackward, LeavesUnitsWithoutAGradient) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 12)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunOptions options = simulated(seed);
    options.model = deep_model();
    options.units_without_gradient = [](std::uint32_t step) {
      return step == 1 ? std::vector<std::uint32_t>{1, 2, 4} : std::vector<std::uint32_t>{3, 6};
    };
    expect_same(train(options), train(after_it(options)));
  }
}

TEST(UpdateInBackward, ContinuesToTheSameBitsAfterEachFault) {
  for (const std::uint64_t seed : {5u, 6u, 16u}) expect_to_continue_after_faults(simulated(seed), 31);
}

// A step that is abandoned in its forward leaves the update of the step before, which reads the gradients of that one.
// On a slow disk it has most of them still to read; in place, the engine's leases of them are still held.
TEST(UpdateInBackward, GoesOnWhereTheNextStepIsAbandoned) {
  for (const auto memory : {tiers::DeviceMemory::host, tiers::DeviceMemory::separate}) {
    RunOptions options = in_backward(1, OffloadDevice::nvme);
    options.model = model_of_long_units();
    options.config.offload_param.device = OffloadDevice::cpu;
    options.config.penstock.tiles_in_flight = 1;
    options.device_memory = memory;
    options.micro_batches = 1;
    options.disk = [](std::uint32_t) {
      return tiers::SimDisk::Options{.latency = std::chrono::milliseconds(5)};
    };
    options.trainer_error = [](const Point& at) -> std::optional<ErrorCode> {
      const bool here = at.attempt == 0 && at.step == 1 && at.place == Point::Place::forward && at.unit == 0;
      return here ? std::optional(ErrorCode::interrupted) : std::nullopt;
    };
    const RunResult result = train(options);
    expect_same(result, train(after_it(options)));
    EXPECT_EQ(result.interruptions.size(), 1u);
  }
}

// Only gradients are parked: units may be acquired meanwhile, and nothing reads the gradients.
TEST(UpdateInBackward, WaitsWhileGradientsAreParked) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 40)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunOptions options = in_backward(1, seed % 4 < 2 ? OffloadDevice::nvme : OffloadDevice::none);
    if (seed % 8 < 4) options.device_memory = tiers::DeviceMemory::separate;
    options.model.units.back().shared.clear();
    options.seed = seed;
    std::vector<tiers::Stream*> streams;
    options.before_initialize = [&](Engine&, tiers::Stream& of_rank) { streams.push_back(&of_rank); };
    const RunResult expected = train(after_it(options));
    streams.clear();
    std::uint32_t parked = 0;
    options.without_leases = [&](Engine& engine, const Point& point) -> Result<void> {
      if (point.place != Point::Place::backward || point.unit >= 6) return ok();
      const bool has_begun = !engine.set_groups(engine.groups());
      const auto out = engine.park(tiers::Tier::host, ParkKinds::gradients);
      if (!out) return out.error();
      ++parked;
      PENSTOCK_TRY(engine.acquire(point.unit, *streams[0]));
      EXPECT_EQ(!engine.set_groups(engine.groups()),
                has_begun);  // of what was in a bucket, which park() has reduced
      PENSTOCK_TRY(engine.unpark());
      return ok();
    };
    expect_same(train(options), expected);
    EXPECT_EQ(parked, 6 * options.micro_batches * options.steps);
  }
}

// finish_update() waits for what the update got so far.
TEST(UpdateInBackward, IsFinishedWithinTheBackward) {
  for (const std::uint32_t ranks : {1u, 2u}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, seed " + std::to_string(seed));
      RunOptions options = in_backward(ranks, OffloadDevice::nvme);
      options.seed = seed;
      const RunResult expected = train(after_it(options));
      std::uint32_t finished = 0;
      options.without_leases = [&](Engine& engine, const Point& point) -> Result<void> {
        if (point.place != Point::Place::backward) return ok();
        ++finished;
        return engine.finish_update();
      };
      expect_same(train(options), expected);
      EXPECT_EQ(finished, ranks * 8 * options.micro_batches * options.steps);
    }
  }
}

// Units that are gathered ahead for a backward that does not acquire them: the collective of the gather, which has no
// shard yet, is before that of the gradient.
TEST(UpdateInBackward, BeginsAfterGathersThatAreNotUsed) {
  for (const std::uint32_t ranks : {1u, 2u}) {
    for (const std::uint64_t seed : penstock::test::seeds(0, 24)) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      RunOptions options = in_backward(ranks, OffloadDevice::nvme);
      options.model.units.back().shared.clear();
      options.device_memory = tiers::DeviceMemory::separate;
      // One flat beside that in use: the next one is gathered ahead.
      options.config.penstock.device_budget = 16_MiB;
      options.config.max_live_parameters = ElementCount(25'000);
      options.config.penstock.host_budget = smallest_host_budget(options) + 100_KiB * (seed % 3);
      options.seed = seed;
      if (seed % 2 == 0) options.faults = slow(tiers::IoOperation::read);
      options.steps = 1;
      std::vector<tiers::Stream*> streams;
      std::vector<Engine*> engines;
      options.before_initialize = [&](Engine& engine, tiers::Stream& of_rank) {
        engines.push_back(&engine);
        streams.push_back(&of_rank);
      };
      options.after_steps = [&](Engine& engine) -> Result<void> {
        const auto rank = std::find(engines.begin(), engines.end(), &engine) - engines.begin();
        tiers::Stream& stream = *streams[static_cast<std::size_t>(rank)];
        for (int step = 0; step < 3; ++step) {
          PENSTOCK_TRY(engine.begin_step({.micro_batches = 1}));
          for (std::uint32_t unit = 0; unit < 8; ++unit) PENSTOCK_TRY(engine.acquire(unit, stream));
          for (std::uint32_t unit = 8; unit-- > 0;) {
            if (unit >= 6) PENSTOCK_TRY(engine.acquire(unit, stream));
            PENSTOCK_TRY_ASSIGN(auto gradients, engine.gradients(unit, stream));
            for (const GradientSlot& slot : gradients.slots()) {
              stream.handle().host_queue()->enqueue([slot, step] {
                for (std::byte& byte : tiers::HostDevice::bytes(slot.tensor.bytes).as<std::byte>())
                  byte = std::byte(0x3a + step);
              });
            }
            PENSTOCK_TRY(engine.reduce(std::move(gradients), stream));
          }
          PENSTOCK_TRY(engine.step());
        }
        return ok();
      };
      const RunResult result = train(options);
      engines.clear();
      streams.clear();
      expect_same(result, train(after_it(options)));
    }
  }
}

}  // namespace
}  // namespace penstock::zero::test
