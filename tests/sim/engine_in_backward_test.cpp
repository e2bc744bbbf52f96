// penstock.update_in_backward: shards are updated while the backward of other units runs.
#include "kit/cluster.hpp"
#include "kit/fault_runs.hpp"
#include "kit/same_runs.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

using Point = RunOptions::ProgramPoint;

RunOptions in_backward(std::uint32_t ranks, OffloadDevice tier) {
  RunOptions options{.ranks = ranks, .model = deep_model()};
  options.config.gradient_clipping = 0;
  options.config.offload_param.device = options.config.offload_optimizer.device = tier;
  options.config.penstock.update_in_backward = true;
  return options;
}

RunOptions after_it(RunOptions options) {
  options.config.penstock.update_in_backward = false;
  return options;
}

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
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
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
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
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

/// What a call of the engine in the backward of unit 0, and before step(), returns: an update has begun then.
template <class Call>
void expect_refused_until_step(const Call& call) {
  for (const auto& [ranks, tier, memory] :
       {std::tuple(1u, OffloadDevice::nvme, tiers::DeviceMemory::host),
        std::tuple(1u, OffloadDevice::cpu, tiers::DeviceMemory::host),
        std::tuple(1u, OffloadDevice::nvme, tiers::DeviceMemory::separate),
        std::tuple(2u, OffloadDevice::nvme, tiers::DeviceMemory::host)}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, tier " + std::to_string(int(tier)) + ", memory " +
                 std::to_string(int(memory)));
    RunOptions options = in_backward(ranks, tier);
    options.device_memory = memory;
    const RunResult expected = train(after_it(options));
    options.seed = 3;
    std::map<Engine*, tiers::Stream*> streams;
    options.before_initialize = [&](Engine& engine, tiers::Stream& of_rank) { streams[&engine] = &of_rank; };
    std::uint32_t refused = 0;
    options.without_leases = [&](Engine& engine, const Point& point) -> Result<void> {
      const bool last = point.micro_batch + 1 >= options.micro_batches;
      if (!last || (point.place == Point::Place::backward && point.unit != 0)) return ok();
      if (point.place == Point::Place::forward) return ok();
      const Result<void> result = call(engine, *streams.at(&engine));
      EXPECT_FALSE(result);
      if (result) return ok();
      EXPECT_EQ(result.error().code(), ErrorCode::failed_state) << result.error().message();
      EXPECT_NE(result.error().message().find("update_in_backward"), std::string::npos)
          << result.error().message();
      EXPECT_EQ(engine.status(), Engine::Status::ready);
      ++refused;
      return ok();
    };
    options.after_steps = [&](Engine& engine) { return call(engine, *streams.at(&engine)); };
    expect_same(train(options), expected);
    EXPECT_EQ(refused, 2 * ranks * options.steps);
  }
}

TEST(UpdateInBackward, HasNoStatesToReadUntilStep) {
  expect_refused_until_step([](Engine& engine, tiers::Stream&) {
    return engine.read_states([](ParameterId, cpu_adam::StateKind, std::uint64_t, auto) { return ok(); });
  });
}

TEST(UpdateInBackward, HasNoDigestUntilStep) {
  expect_refused_until_step([](Engine& engine, tiers::Stream&) -> Result<void> {
    PENSTOCK_TRY(engine.digest());
    return ok();
  });
}

// A refused call changes nothing: the step can be completed.
TEST(UpdateInBackward, IsNotAbandonedOnceItHasBegun) {
  expect_refused_until_step(
      [](Engine& engine, tiers::Stream& stream) { return engine.abandon_step(stream); });
}

TEST(UpdateInBackward, TakesNoOtherGroupsUntilStep) {
  expect_refused_until_step(
      [](Engine& engine, tiers::Stream&) { return engine.set_groups(engine.groups()); });
}

// From its last gradient on, a unit has neither its old parameters nor its new ones.
TEST(UpdateInBackward, RefusesAUnitWhoseLastGradientWasReduced) {
  RunOptions options = in_backward(1, OffloadDevice::nvme);
  tiers::Stream* stream = nullptr;
  options.before_initialize = [&](Engine&, tiers::Stream& of_rank) { stream = &of_rank; };
  std::uint32_t refused = 0;
  options.without_leases = [&](Engine& engine, const Point& point) -> Result<void> {
    if (point.place != Point::Place::backward || point.unit == 6 || point.unit == 7) return ok();
    // Unit 7 shares a weight with unit 0.
    for (std::uint32_t unit = point.unit + 1; unit < 7; ++unit) {
      const auto lease = engine.acquire(unit, *stream);
      EXPECT_EQ(lease.has_value(), point.micro_batch + 1 < options.micro_batches) << unit;
      if (lease) continue;
      EXPECT_EQ(lease.error().code(), ErrorCode::failed_state) << lease.error().message();
      EXPECT_NE(lease.error().message().find("layer" + std::to_string(unit)), std::string::npos);
      ++refused;
    }
    return ok();
  };
  const RunResult result = train(options);
  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(refused, options.steps * (1 + 2 + 3 + 4 + 5 + 6));
}

TEST(UpdateInBackward, EndsTheRunForAGradientThatIsNotFinite) {
  for (const std::uint32_t ranks : {1u, 2u}) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      RunOptions options = in_backward(ranks, OffloadDevice::nvme);
      options.seed = seed;
      options.gradient_scale = [](std::uint32_t step, std::uint32_t rank) {
        return step == 1 && rank == 0 ? std::numeric_limits<float>::infinity() : 1.0f;
      };
      const RunResult result = train(options);
      ASSERT_TRUE(result.error);
      EXPECT_TRUE(result.engine_failed);
      EXPECT_EQ(result.error->code(), ErrorCode::non_finite) << result.error->message();
      EXPECT_NE(result.error->message().find("update_in_backward"), std::string::npos)
          << result.error->message();
      options.config.penstock.non_finite_gradients = NonFiniteGradients::as_deepspeed;
      const RunResult with_it = train(options);
      EXPECT_FALSE(with_it.error);
      EXPECT_EQ(with_it.digest, train(after_it(options)).digest);
    }
  }
}

// Each flat's norm may be small enough where that of all is not.
TEST(UpdateInBackward, EndsTheRunWhereverAStepWouldBeSkipped) {
  std::set<std::string> named;
  for (const std::uint32_t ranks : {1u, 2u}) {
    for (int i = 0; i < 40; ++i) {
      const float scale = 2e16f * std::pow(1.3f, static_cast<float>(i / 2));
      const bool of_all = i % 2 == 0;
      SCOPED_TRACE(std::to_string(ranks) + " ranks, scale " + std::to_string(scale));
      RunOptions options = in_backward(ranks, OffloadDevice::nvme);
      options.steps = 1;
      options.seed = 1;
      options.gradient_scale = [=](std::uint32_t, std::uint32_t rank) {
        return of_all || rank == 0 ? scale : 1.0f;
      };
      const RunResult after = train(after_it(options));
      ASSERT_FALSE(after.error) << after.error->message();
      const RunResult result = train(options);
      const bool skipped = after.outcomes[0].kind == StepOutcome::Kind::skipped;
      EXPECT_EQ(result.error.has_value(), skipped);
      if (!result.error) {
        EXPECT_EQ(result.digest, after.digest);
        continue;
      }
      EXPECT_EQ(result.error->code(), ErrorCode::non_finite) << result.error->message();
      const std::string object = result.error->fields().object;
      named.insert(object.substr(0, object.find_first_of("0123456789")));
    }
  }
  EXPECT_EQ(named, (std::set<std::string>{"all gradients together", "layer", "the gradients of rank "}));
}

// The update waits for a gradient whose reduction the peer has left.
TEST(UpdateInBackward, FailsWithAPeer) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunOptions options = in_backward(2, OffloadDevice::nvme);
    options.seed = seed;
    options.trainer_error = [seed](const Point& at) -> std::optional<ErrorCode> {
      const bool here = at.step == 1 && at.rank == 1 && at.micro_batch == 1 &&
                        at.place == Point::Place::backward && at.unit == seed % 8;
      return here ? std::optional(ErrorCode::io) : std::nullopt;
    };
    const RunResult result = train(options);
    ASSERT_TRUE(result.errors[0]);
    EXPECT_EQ(result.errors[0]->code(), ErrorCode::peer_failed) << result.errors[0]->message();
    EXPECT_TRUE(result.engine_failed);
  }
}

RunOptions abandoning(std::uint32_t ranks, std::uint32_t micro_batch) {
  RunOptions options = in_backward(ranks, OffloadDevice::nvme);
  options.seed = 11;
  options.trainer_error = [=](const Point& at) -> std::optional<ErrorCode> {
    const bool here = at.step == 1 && at.attempt == 0 && at.rank == 0 && at.micro_batch == micro_batch &&
                      at.place == Point::Place::backward && at.unit == 3;
    return here ? std::optional(ErrorCode::interrupted) : std::nullopt;
  };
  return options;
}

TEST(UpdateInBackward, AbandonsAStepBeforeItsUpdateBegins) {
  for (const std::uint32_t ranks : {1u, 2u}) {
    const RunResult result = train(abandoning(ranks, 0));
    expect_same(result, train(after_it(abandoning(ranks, 0))));
    EXPECT_EQ(result.interruptions.size(), ranks);
  }
}

// The rank's call is refused, and the rank leaves.
TEST(UpdateInBackward, AbandonsNoStepAfterThat) {
  for (const std::uint32_t ranks : {1u, 2u}) {
    const RunResult result = train(abandoning(ranks, 1));
    ASSERT_EQ(result.errors.size(), ranks);
    for (const auto& error : result.errors) ASSERT_TRUE(error);
    EXPECT_EQ(result.errors[0]->code(), ErrorCode::failed_state) << result.errors[0]->message();
    EXPECT_NE(result.errors[0]->message().find("update_in_backward"), std::string::npos);
    EXPECT_FALSE(result.engine_failed);
  }
}

// No rank can go on then.
TEST(UpdateInBackward, EndsTheRunWhereAPeerAbandonsTheStep) {
  std::uint32_t failed = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunOptions options = in_backward(2, OffloadDevice::nvme);
    options.config.reduce_bucket_size = ElementCount(1);
    options.seed = seed;
    options.trainer_error = [](const Point& at) -> std::optional<ErrorCode> {
      const bool here = at.step == 1 && at.attempt == 0 && at.rank == 1 && at.micro_batch == 1 &&
                        at.place == Point::Place::backward && at.unit == 7;
      return here ? std::optional(ErrorCode::interrupted) : std::nullopt;
    };
    const RunResult result = train(options);
    if (!result.error) continue;  // rank 0 had not begun either
    ASSERT_TRUE(result.errors[0] && result.errors[1]);
    EXPECT_EQ(result.errors[0]->code(), ErrorCode::failed_state) << result.errors[0]->message();
    EXPECT_EQ(result.errors[1]->code(), ErrorCode::peer_failed) << result.errors[1]->message();
    EXPECT_NE(result.errors[0]->message().find("a rank has abandoned the step"), std::string::npos);
    EXPECT_TRUE(result.engine_failed);
    ++failed;
  }
  EXPECT_GT(failed, 0u);
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
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
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
    for (std::uint64_t seed = 0; seed < 24; ++seed) {
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
