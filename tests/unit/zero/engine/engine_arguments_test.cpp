// What a trainer passes to the engine is judged where it enters: a refusal changes nothing.
#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/rank.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace penstock::zero {
namespace {

class EngineArguments : public testing::Test {
 protected:
  static std::unique_ptr<Rank> make_rank(float gradient_clipping = 1.0f,
                                         const std::vector<const char*>& units = {"first", "second"},
                                         std::uint32_t gradient_accumulation_steps = 1,
                                         tiers::DeviceMemory location = tiers::DeviceMemory::host) {
    Config config{.stage = 3};
    config.param_persistence_threshold = {};  // else the device has room for all of these small units
    config.gradient_clipping = gradient_clipping;
    config.gradient_accumulation_steps = gradient_accumulation_steps;
    ModelLayout model;
    for (const char* name : units) {
      model.units.push_back({.name = name, .parameters = {{"weight", ElementCount(1024), 0}}});
    }
    auto rank = Rank::create({.config = config,
                              .model = model,
                              .make_accelerator = [location](ByteCount budget) -> Result<Accelerator> {
                                return make_host_accelerator({.memory = budget, .location = location});
                              }})
                    .value();
    rank->engine()
        .initialize([](ParameterId, std::uint64_t, std::span<float> values) {
          std::fill(values.begin(), values.end(), 1.0f);
        })
        .value();
    return rank;
  }

  /// One micro-batch in which every gradient is `gradient`.
  static void reduce_all(Engine& engine, tiers::Stream& stream, float gradient, std::uint32_t units = 2) {
    for (std::uint32_t unit = units; unit-- > 0;) {
      auto weights = engine.acquire(unit, stream).value();
      auto gradients = engine.gradients(unit, stream).value();
      for (const GradientSlot& slot : gradients.slots()) {
        const HostSpan bytes = tiers::HostDevice::bytes(slot.tensor.bytes);
        std::fill_n(reinterpret_cast<float*>(bytes.data()), bytes.size().value() / sizeof(float), gradient);
      }
      weights.end();
      engine.reduce(std::move(gradients), stream).value();
    }
  }
  static StepOutcome train(Rank& rank, tiers::Stream& stream, float gradient) {
    rank.engine().begin_step({}).value();
    reduce_all(rank.engine(), stream, gradient, static_cast<std::uint32_t>(rank.model().units.size()));
    return rank.engine().step().value();
  }

  std::unique_ptr<Rank> rank_ = make_rank();
  Engine& engine_ = rank_->engine();
  std::unique_ptr<tiers::Stream> stream_ = rank_->device().create_stream().value();
};

TEST_F(EngineArguments, RefusesALearningRateThatIsNone) {
  for (const float wrong :
       {-1e-3f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const auto refused = engine_.begin_step({.learning_rate = wrong});
    ASSERT_FALSE(refused) << wrong;
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message().find("learning_rate"), std::string::npos)
        << refused.error().message();
    EXPECT_EQ(engine_.status(), Engine::Status::ready);
  }

  const StepOutcome outcome = train(*rank_, *stream_, 0.5f);

  const auto other = make_rank();
  auto stream = other->device().create_stream().value();
  EXPECT_EQ(train(*other, *stream, 0.5f).gradient_norm, outcome.gradient_norm);
  EXPECT_EQ(engine_.digest().value(), other->engine().digest().value());
}

TEST_F(EngineArguments, NamesTheUnitsThatThereAre) {
  const auto refused = engine_.acquire(2, *stream_);

  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("unit, wanted below 2, got 2"), std::string::npos)
      << refused.error().message();
}

TEST_F(EngineArguments, RefusesMoreMicroBatchesThanTheStepHas) {
  engine_.begin_step({.micro_batches = 2}).value();
  reduce_all(engine_, *stream_, 0.5f);
  reduce_all(engine_, *stream_, 0.5f);

  const auto refused = engine_.gradients(0, *stream_);

  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("wanted at most 2, got 3"), std::string::npos)
      << refused.error().message();
}

TEST_F(EngineArguments, TakesAnyNumberOfMicroBatchesWithoutMemoryForEach) {
  ASSERT_TRUE(engine_.begin_step({.micro_batches = std::numeric_limits<std::uint32_t>::max()}));
  reduce_all(engine_, *stream_, 0.5f);
  ASSERT_TRUE(engine_.abandon_step(*stream_));
  EXPECT_EQ(train(*rank_, *stream_, 0.5f).kind, StepOutcome::Kind::updated);
}

TEST_F(EngineArguments, RefusesStatesThatARunCannotGoOnWith) {
  const auto restore = [&](cpu_adam::StateKind kind, float value) {
    return engine_.restore(7,
                           [=](ParameterId id, cpu_adam::StateKind of, std::uint64_t first,
                               std::span<float> values) -> Result<void> {
                             if (id.unit == 1 && of == kind && first == 0) values[3] = value;
                             return ok();
                           });
  };
  for (const auto kind : cpu_adam::all_states) {
    const auto refused = restore(kind, std::numeric_limits<float>::quiet_NaN());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message().find(std::string(to_string(kind)) + " of weight, element 3"),
              std::string::npos)
        << refused.error().message();
    EXPECT_EQ(engine_.status(), Engine::Status::ready);
  }
  EXPECT_FALSE(engine_.initialize([](ParameterId, std::uint64_t, std::span<float> values) {
    values[0] = std::numeric_limits<float>::infinity();
  }));
  ASSERT_TRUE(restore(cpu_adam::StateKind::master, 1.0f));
  EXPECT_EQ(train(*rank_, *stream_, 0.5f).step, 8u);
}

TEST_F(EngineArguments, KeepsTheParametersIfALeaseForbidsToSetThem) {
  const std::string before = engine_.digest().value();
  auto lease = engine_.acquire(0, *stream_).value();

  const auto refused = engine_.initialize([](ParameterId, std::uint64_t, std::span<float>) {});

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::failed_state);
  lease.end();
  EXPECT_EQ(engine_.digest().value(), before);
}

TEST_F(EngineArguments, TakesTheNumberOfMicroBatchesFromTheConfigurationUnlessTheStepGivesOne) {
  const auto accumulating = make_rank(1.0f, {"first", "second"}, /*gradient_accumulation_steps=*/2);
  Engine& engine = accumulating->engine();
  const auto stream = accumulating->device().create_stream().value();
  const auto micro_batches_until_complete = [&](const Engine::StepOptions& options) {
    engine.begin_step(options).value();
    for (int count = 1; count < 5; ++count) {
      reduce_all(engine, *stream, 0.5f);
      if (engine.step()) return count;
    }
    return 0;
  };

  EXPECT_EQ(micro_batches_until_complete({}), 2);
  EXPECT_EQ(micro_batches_until_complete({.micro_batches = 1}), 1);
  EXPECT_EQ(micro_batches_until_complete({.micro_batches = 3}), 3);
  EXPECT_EQ(micro_batches_until_complete({}), 2);
  const auto none = engine.begin_step({.micro_batches = 0});
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message().find("micro_batches, wanted at least 1, got 0"), std::string::npos)
      << none.error().message();
}

TEST_F(EngineArguments, NamesAFewOfTheUnitsWhoseGradientsAreMissing) {
  const auto rank = make_rank(1.0f, {"a", "b", "c", "d", "e"}, 2);
  const auto stream = rank->device().create_stream().value();
  Engine& engine = rank->engine();
  engine.begin_step({}).value();
  const auto expect_missing = [&](const char* named) {
    const auto refused = engine.step();
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message().find(named), std::string::npos) << refused.error().message();
  };

  reduce_all(engine, *stream, 0.5f, 5);
  expect_missing(": all 5 units, wanted 2, got 1 ");
  reduce_all(engine, *stream, 0.5f, 1);  // that of "a"
  expect_missing(": b, c, d and 1 more, wanted 2, got 1 ");
  EXPECT_TRUE(engine.abandon_step(*stream));
}

TEST_F(EngineArguments, AddsTheGradientsOfMicroBatchesAndDoesNotDivideThem) {
  engine_.begin_step({.micro_batches = 2}).value();
  reduce_all(engine_, *stream_, 0.25f);
  reduce_all(engine_, *stream_, 0.25f);
  const StepOutcome two = engine_.step().value();

  const auto other = make_rank();
  const auto stream = other->device().create_stream().value();
  EXPECT_EQ(two.gradient_norm, train(*other, *stream, 0.5f).gradient_norm);
}

TEST_F(EngineArguments, RefusesGradientsThatAreEmptyMovedFromOrOfAnotherEngine) {
  const auto other = make_rank();
  auto other_stream = other->device().create_stream().value();
  other->engine().begin_step({}).value();
  auto of_other = other->engine().gradients(0, *other_stream).value();
  engine_.begin_step({}).value();
  auto taken = engine_.gradients(0, *stream_).value();
  UnitGradients kept = std::move(taken);

  for (UnitGradients* wrong : {&taken, &of_other}) {
    const auto refused = engine_.reduce(std::move(*wrong), *stream_);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  }
  EXPECT_EQ(engine_.reduce({}, *stream_).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(engine_.status(), Engine::Status::ready);
  EXPECT_TRUE(engine_.reduce(std::move(kept), *stream_));
}

TEST_F(EngineArguments, ALeaseThatOutlivesTheEngineDoesNothing) {
  UnitLease lease = engine_.acquire(0, *stream_).value();
  UnitGradients gradients = engine_.gradients(0, *stream_).value();
  stream_.reset();
  rank_.reset();
  lease.end();

  const auto other = make_rank();
  const auto stream = other->device().create_stream().value();
  EXPECT_EQ(other->engine().reduce(std::move(gradients), *stream).error().code(),
            ErrorCode::invalid_argument);
}

TEST_F(EngineArguments, RefusesAStreamOfAnotherDevice) {
  tiers::HostDevice other({.memory = 1_MiB, .mode = tiers::HostDevice::Mode::deferred});
  const auto foreign = other.create_stream().value();
  const auto expect_refused = [](const auto& result, const std::string& operation) {
    ASSERT_FALSE(result) << operation;
    EXPECT_EQ(result.error().code(), ErrorCode::invalid_argument) << operation;
    EXPECT_NE(result.error().message().find("[" + operation + "]"), std::string::npos)
        << result.error().message();
    EXPECT_NE(result.error().message().find("a stream of the engine's device, host"), std::string::npos)
        << result.error().message();
  };
  std::vector<float> values(1024);
  const std::vector<GradientSource> own = {HostTensor{HostSpan(std::span(values)), DType::fp32}};
  auto gradients = engine_.gradients(1, *stream_).value();

  expect_refused(engine_.acquire(0, *foreign), "Engine::acquire");
  expect_refused(engine_.gradients(0, *foreign), "Engine::gradients");
  expect_refused(engine_.reduce(0, own, *foreign), "Engine::reduce");
  expect_refused(engine_.reduce(std::move(gradients), *foreign), "Engine::reduce");
  expect_refused(engine_.checkpoint(0, CheckpointUse::write, *foreign), "Engine::checkpoint");
  expect_refused(engine_.abandon_step(*foreign, ""), "Engine::abandon_step");

  EXPECT_EQ(engine_.status(), Engine::Status::ready);
  ASSERT_TRUE(engine_.abandon_step(*stream_, "the reduction was refused"));
  EXPECT_EQ(train(*rank_, *stream_, 1).kind, StepOutcome::Kind::updated);
}

TEST_F(EngineArguments, RefusesEmptyFunctions) {
  for (const Result<void>& refused :
       {engine_.initialize({}), engine_.restore(1, {}), engine_.read_states({})}) {
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  }
  EXPECT_TRUE(engine_.digest());  // the parameters still have their values
}

TEST_F(EngineArguments, RefusesACallDuringACall) {
  const auto refused = [this](const auto& result) {
    return !result && result.error().code() == ErrorCode::failed_state &&
           engine_.status() == Engine::Status::ready;
  };
  int calls = 0;
  const auto call_again = [&](ParameterId, cpu_adam::StateKind, std::uint64_t,
                              std::span<const float>) -> Result<void> {
    ++calls;
    EXPECT_TRUE(refused(engine_.initialize([](ParameterId, std::uint64_t, std::span<float>) {})));
    EXPECT_TRUE(refused(engine_.digest()));
    std::thread([&] { EXPECT_TRUE(refused(engine_.acquire(0, *stream_))); }).join();
    return ok();
  };

  EXPECT_TRUE(engine_.read_states(call_again));

  EXPECT_GT(calls, 0);
  EXPECT_EQ(train(*rank_, *stream_, 1.0f).step, 1u);
}

TEST_F(EngineArguments, GoesOnWithTheNextStepAfterAnExceptionInABackward) {
  train(*rank_, *stream_, 0.5f);
  try {
    engine_.begin_step({}).value();
    auto weights = engine_.acquire(1, *stream_).value();
    auto gradients = engine_.gradients(1, *stream_).value();
    throw std::bad_alloc();
  } catch (const std::bad_alloc&) {
  }
  EXPECT_EQ(engine_.begin_step({}).error().code(), ErrorCode::failed_state);

  ASSERT_TRUE(engine_.abandon_step(*stream_, "no memory for activations"));

  train(*rank_, *stream_, 0.25f);
  const auto undisturbed = make_rank();
  const auto stream = undisturbed->device().create_stream().value();
  train(*undisturbed, *stream, 0.5f);
  train(*undisturbed, *stream, 0.25f);
  EXPECT_EQ(engine_.digest().value(), undisturbed->engine().digest().value());
}

TEST_F(EngineArguments, SkipsAStepWhoseFiniteGradientsHaveSquaresThatOverflow) {
  const auto unclipped = make_rank(/*gradient_clipping=*/0);
  auto stream = unclipped->device().create_stream().value();
  const std::string before = unclipped->engine().digest().value();

  const StepOutcome skipped = train(*unclipped, *stream, 1e20f);

  EXPECT_EQ(skipped.kind, StepOutcome::Kind::skipped);
  EXPECT_NE(skipped.skip_reason.find("overflow"), std::string::npos) << skipped.skip_reason;
  EXPECT_EQ(unclipped->engine().digest().value(), before);
  EXPECT_EQ(train(*unclipped, *stream, 1e10f).kind, StepOutcome::Kind::updated);
  // Clipping makes them small enough.
  EXPECT_EQ(train(*rank_, *stream_, 1e20f).kind, StepOutcome::Kind::updated);
}

class DeviceBudget : public EngineArguments {
 protected:
  static constexpr std::uint32_t unit_count = 12;
  static std::unique_ptr<Rank> make_deep_rank() {
    return make_rank(1.0f, {"u0", "u1", "u2", "u3", "u4", "u5", "u6", "u7", "u8", "u9", "u10", "u11"}, 1,
                     tiers::DeviceMemory::separate);
  }
  /// That the refused calls have changed nothing.
  static void expect_trains_as_if_nothing_had_happened(Rank& rank, tiers::Stream& stream) {
    ASSERT_EQ(train(rank, stream, 0.5f).kind, StepOutcome::Kind::updated);
    const auto other = make_deep_rank();
    auto other_stream = other->device().create_stream().value();
    train(*other, *other_stream, 0.5f);
    EXPECT_EQ(rank.engine().digest().value(), other->engine().digest().value());
  }
  std::unique_ptr<Rank> deep_ = make_deep_rank();
  std::unique_ptr<tiers::Stream> deep_stream_ = deep_->device().create_stream().value();
};

TEST_F(DeviceBudget, NamesTheLeasesThatHoldItAndStaysReady) {
  Engine& engine = deep_->engine();
  std::vector<UnitLease> held;
  std::optional<Error> refused;
  for (std::uint32_t unit = 0; unit < unit_count && !refused; ++unit) {
    auto lease = engine.acquire(unit, *deep_stream_);
    if (!lease) {
      refused = lease.error();
    } else {
      held.push_back(std::move(*lease));
    }
  }

  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code(), ErrorCode::budget_too_small);
  EXPECT_NE(refused->message().find("leased  u0"), std::string::npos) << refused->message();
  EXPECT_EQ(engine.status(), Engine::Status::ready);
  held.erase(held.begin());
  EXPECT_TRUE(engine.acquire(static_cast<std::uint32_t>(held.size() + 1), *deep_stream_));
  held.clear();
  expect_trains_as_if_nothing_had_happened(*deep_, *deep_stream_);
}

TEST_F(DeviceBudget, NamesTheOpenGradientsThatHoldItAndStaysReady) {
  Engine& engine = deep_->engine();
  engine.begin_step({}).value();
  std::vector<UnitGradients> open;
  std::optional<Error> refused;
  for (std::uint32_t unit = unit_count; unit-- > 0 && !refused;) {
    auto gradients = engine.gradients(unit, *deep_stream_);
    if (!gradients) {
      refused = gradients.error();
    } else {
      open.push_back(std::move(*gradients));
    }
  }

  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code(), ErrorCode::budget_too_small);
  EXPECT_NE(refused->message().find("gradient of u11"), std::string::npos) << refused->message();
  EXPECT_EQ(engine.status(), Engine::Status::ready);
  auto reduced = static_cast<std::uint32_t>(open.size());
  for (UnitGradients& gradients : open) {
    for (const GradientSlot& slot : gradients.slots()) {
      const HostSpan bytes = tiers::HostDevice::bytes(slot.tensor.bytes);
      std::fill_n(reinterpret_cast<float*>(bytes.data()), bytes.size().value() / sizeof(float), 0.5f);
    }
    engine.reduce(std::move(gradients), *deep_stream_).value();
  }
  reduce_all(engine, *deep_stream_, 0.5f, unit_count - reduced);
  EXPECT_EQ(engine.step().value().kind, StepOutcome::Kind::updated);
}

}  // namespace
}  // namespace penstock::zero
