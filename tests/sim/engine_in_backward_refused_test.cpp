// penstock.update_in_backward: what is refused once an update has begun, and what ends the run then.
#include "kit/same_runs.hpp"
#include "kit/seeds.hpp"
#include "sim/in_backward_runs.hpp"

#include <gtest/gtest.h>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace penstock::zero::test {
namespace {

using Point = RunOptions::ProgramPoint;

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

// The second parameter is at 20,096, in the block that begins at 16,384, and is the whole shard of the second
// of two ranks.
TEST(UpdateInBackward, NamesTheParametersOfTheBlockWhoseGradientIsNotFinite) {
  const auto named = [](std::uint32_t ranks, std::uint32_t parameter) {
    RunOptions options = in_backward(ranks, OffloadDevice::nvme);
    options.model.units[4].parameters = {{"weight", ElementCount(20'000), 0},
                                         {"second", ElementCount(20'000), 0}};
    options.seed = 1;
    options.scaled_parameter = {4, parameter};
    options.gradient_scale = [](std::uint32_t step, std::uint32_t) {
      return step == 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
    };
    const std::optional<Error> error = train(options).errors.at(ranks - 1);
    return error ? error->fields().object : "no error";
  };
  EXPECT_EQ(named(1, 0), "layer4.weight");
  EXPECT_EQ(named(1, 1), "layer4.weight or layer4.second");
  EXPECT_EQ(named(2, 1), "layer4.second");
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
  for (const std::uint64_t seed : penstock::test::seeds(0, 20)) {
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
  for (const std::uint64_t seed : penstock::test::seeds(0, 12)) {
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

}  // namespace
}  // namespace penstock::zero::test
