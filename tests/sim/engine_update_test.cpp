// The update runs beside what the trainer does after step().
#include "kit/cluster.hpp"
#include "kit/seeds.hpp"

#include <gtest/gtest.h>
#include <cerrno>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

RunOptions on_disk(std::uint32_t ranks, std::optional<std::uint64_t> seed) {
  RunOptions options{.ranks = ranks, .steps = 4, .model = deep_model(), .seed = seed};
  options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::nvme;
  return options;
}

/// Step 1 updates only the last two units, step 2 all but them.
std::vector<std::uint32_t> frozen(std::uint32_t step) {
  if (step == 1) return {1, 2, 3, 4, 5, 6};
  if (step == 2) return {0, 7};
  return {};
}

TEST(EngineUpdate, GivesTheBitsOfOneThatTheTrainerWaitsFor) {
  for (const std::uint32_t ranks : {1u, 2u}) {
    for (const std::uint64_t seed : penstock::test::seeds(0, 12)) {
      RunOptions options = on_disk(ranks, seed == 0 ? std::nullopt : std::optional(seed));
      options.threads = seed == 0 ? 2 : 1;
      if (seed % 2 == 1) options.config.penstock.host_budget = smallest_host_budget(options);
      options.units_without_gradient = frozen;
      RunOptions waiting = options;
      waiting.before_step = [](std::uint32_t, std::uint32_t, swap::Runtime&) {};  // after finish_update()

      const RunResult beside = train(options), after = train(waiting);

      ASSERT_FALSE(beside.error) << "seed " << seed << ": " << beside.error->message();
      ASSERT_FALSE(after.error) << after.error->message();
      EXPECT_EQ(beside.digest, after.digest) << ranks << " ranks, seed " << seed;
      EXPECT_EQ(beside.parameters, after.parameters);
      EXPECT_EQ(beside.above_prediction, std::vector<std::string>{});
    }
  }
}

/// Steps of a trainer that gathers nothing: its gradients would overwrite those that the update still reads.
Result<void> train_without_gathers(Engine& engine, tiers::Device& device, std::uint32_t units, bool waits) {
  PENSTOCK_TRY_ASSIGN(const auto stream, device.create_stream());
  for (int step = 0; step < 3; ++step) {
    PENSTOCK_TRY(engine.begin_step({.micro_batches = 1}));
    if (waits) PENSTOCK_TRY(engine.finish_update());
    for (std::uint32_t unit = 0; unit < units; ++unit) {
      PENSTOCK_TRY_ASSIGN(auto gradients, engine.gradients(unit, *stream));
      for (const GradientSlot& slot : gradients.slots()) {
        if (slot.accumulate) continue;
        stream->handle().host_queue()->enqueue([slot, step] {
          for (std::byte& byte : tiers::HostDevice::bytes(slot.tensor.bytes).as<std::byte>()) {
            byte = std::byte(0x3a + step);
          }
        });
      }
      PENSTOCK_TRY(engine.reduce(std::move(gradients), *stream));
    }
    PENSTOCK_TRY(engine.step());
  }
  return ok();
}

TEST(EngineUpdate, KeepsTheGradientsThatItReads) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 12)) {
    RunOptions options = on_disk(1, seed == 0 ? std::nullopt : std::optional(seed));
    options.steps = 1;
    options.model.units.back().shared.clear();
    tiers::Device* device = nullptr;
    options.change_accelerator = [&](Accelerator& made) { device = made.device.get(); };
    const auto digest = [&](bool waits) {
      options.after_steps = [&, waits](Engine& engine) {
        return train_without_gathers(engine, *device, 8, waits);
      };
      const RunResult result = train(options);
      EXPECT_FALSE(result.error) << result.error->message();
      return result.digest;
    };
    EXPECT_EQ(digest(false), digest(true)) << "seed " << seed;
  }
}

TEST(EngineUpdate, EndsWithTheEngine) {
  for (const std::uint32_t ranks : {1u, 2u}) {
    for (const std::uint64_t seed : penstock::test::seeds(0, 12)) {
      RunOptions options = on_disk(ranks, seed == 0 ? std::nullopt : std::optional(seed));
      options.steps = 1;
      options.after_steps = [](Engine&) -> Result<void> {
        return Error(ErrorCode::io, "the trainer leaves");
      };

      const RunResult result = train(options);

      ASSERT_TRUE(result.error);
      EXPECT_EQ(result.error->code(), ErrorCode::io) << result.error->message();
    }
  }
}

// Tiles that cannot be stored stay in memory, and the update waits for room that they do not leave.
TEST(EngineUpdate, EndsWithTheEngineWhenTheDiskFailsForGood) {
  RunOptions options = on_disk(2, 5);
  options.config.penstock.host_budget = smallest_host_budget(options);
  const RunResult clean = train(options);
  ASSERT_FALSE(clean.error);
  for (std::uint64_t first = 0; first < clean.requests; first += clean.requests / 24) {
    options.faults = {tiers::Fault::fail({}, first, EIO, ~std::uint64_t{0} - first)};
    EXPECT_TRUE(train(options).error) << first;
  }
}

TEST(EngineUpdate, IsWaitedForWhereTheStatesAreRead) {
  RunOptions options = on_disk(1, 3);
  std::vector<std::uint64_t> moved;
  options.after_steps = [&](Engine& engine) -> Result<void> {
    std::uint64_t not_initial = 0;
    PENSTOCK_TRY(engine.read_states(
        [&](ParameterId, cpu_adam::StateKind kind, std::uint64_t, auto values) -> Result<void> {
          if (kind != cpu_adam::StateKind::second_moment) return ok();
          for (const float value : values) not_initial += value > 0 ? 1 : 0;
          return ok();
        }));
    moved.push_back(not_initial);
    PENSTOCK_TRY(engine.finish_update());
    return engine.finish_update();
  };
  options.steps = 1;

  EXPECT_FALSE(train(options).error);

  ASSERT_EQ(moved.size(), 1u);
  EXPECT_GT(moved[0], options.model.element_count().value() * 9 / 10);
}

// A read of a tile that fails stops the update. The call that waits returns the error; repeated, it continues.
TEST(EngineUpdate, ContinuesAfterAReadThatFailed) {
  const RunResult clean = train(on_disk(2, 5));
  ASSERT_FALSE(clean.error);
  std::uint32_t stopped = 0;
  for (std::uint64_t request = 0; request < clean.requests; request += 7) {
    RunOptions options = on_disk(2, 5);
    options.faults = {tiers::Fault::fail(tiers::IoOperation::read, request, ENODEV)};
    options.attempts = 3;

    const RunResult result = train(options);

    if (result.injected == 0) break;
    if (result.error) continue;  // the read of a shard for a gather
    EXPECT_EQ(result.digest, clean.digest) << request;
    stopped += result.repeated;
  }
  EXPECT_GT(stopped, 0u);
}

enum class Ending : std::uint8_t { skipped, abandoned };

/// The bytes of tiles that are read from the second step on, in `attempts` without an update and in the next one until
/// its verdict.
ByteCount read_ahead_after(std::uint32_t attempts, Ending ending, RunOptions options) {
  options.micro_batches = 1;
  options.steps = 2 + attempts;
  tiers::Ledger* ledger = nullptr;
  ByteCount before, after;
  const auto read = [&ledger] { return ledger->traffic(tiers::Purpose::optimizer_tile).read; };
  options.before_step = [&](std::uint32_t step, std::uint32_t, swap::Runtime& runtime) {
    ledger = &runtime.ledger();
    if (step == 1) before = read();
  };
  options.gradient_scale = [=](std::uint32_t step, std::uint32_t) {
    const bool is_skipped = ending == Ending::skipped && step >= 1 && step <= attempts;
    return is_skipped ? std::numeric_limits<float>::infinity() : 1.0f;
  };
  options.trainer_error = [&](const RunOptions::ProgramPoint& point) -> std::optional<ErrorCode> {
    if (point.place != RunOptions::ProgramPoint::Place::before_step) return std::nullopt;
    const bool is_abandoned = ending == Ending::abandoned && point.step == 1 && point.attempt < attempts;
    if (is_abandoned) return ErrorCode::interrupted;
    if (point.step == (ending == Ending::skipped ? 1 + attempts : 1)) after = read();
    return std::nullopt;
  };

  const RunResult result = train(options);

  EXPECT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
  return after - before;
}

TEST(EngineUpdate, IsReadAheadAgainAfterAStepWithoutOneUnlessItsTilesAreInMemory) {
  for (const Ending ending : {Ending::skipped, Ending::abandoned}) {
    SCOPED_TRACE(ending == Ending::skipped ? "skipped" : "abandoned");
    ByteCount once_evicted, evicted;
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      RunOptions options = on_disk(1, seed);
      options.device_memory = tiers::DeviceMemory::separate;
      options.config.penstock.host_budget = smallest_host_budget(options);
      once_evicted += read_ahead_after(0, ending, options);
      evicted += read_ahead_after(4, ending, options);
      options.config.penstock.host_budget += 1_MiB;
      const ByteCount once = read_ahead_after(0, ending, options);
      EXPECT_GT(once, ByteCount());
      EXPECT_EQ(read_ahead_after(4, ending, options), once) << "seed " << seed;
    }
    EXPECT_GE(evicted.value() * 2, once_evicted.value() * 3);  // equal, if only the first attempt reads ahead
  }
}

}  // namespace
}  // namespace penstock::zero::test
