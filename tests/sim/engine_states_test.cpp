#include "kit/cluster.hpp"
#include "kit/saved_states.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

using cpu_adam::StateFormat;
using cpu_adam::StateKind;

class EngineStates : public testing::TestWithParam<RunFormat> {
 protected:
  [[nodiscard]] static RunOptions run(std::uint32_t ranks, std::uint64_t seed = 5) {
    RunOptions options{.ranks = ranks, .seed = seed};
    GetParam().set(options.config);
    options.config.offload_optimizer.device = OffloadDevice::nvme;
    options.config.offload_param.device = OffloadDevice::nvme;
    return options;
  }
};

TEST_P(EngineStates, ContinueARunWithTheSameResult) {
  RunOptions whole = run(2);
  whole.steps = 4;
  SavedStates at_end(whole.model);
  whole.after_steps = [&](Engine& engine) { return at_end.save(engine); };
  const RunResult expected = train(whole);
  ASSERT_FALSE(expected.error) << expected.error->message();

  RunOptions first = run(2);
  first.steps = 2;
  SavedStates saved(first.model);
  first.after_steps = [&](Engine& engine) {
    EXPECT_EQ(engine.completed_steps(), 2u);
    return saved.save(engine);
  };
  ASSERT_FALSE(train(first).error);
  EXPECT_EQ(saved.written(), 3u * (5000 + 777 + 40'001 + 130 + 9'000 + 1));  // each value once

  RunOptions second = run(2, /*seed=*/11);
  second.first_step = 2;
  second.steps = 4;
  SavedStates resumed_end(second.model);
  second.restore = [&](Engine& engine) { return saved.restore(engine, 2); };
  second.after_steps = [&](Engine& engine) { return resumed_end.save(engine); };
  const RunResult resumed = train(second);
  ASSERT_FALSE(resumed.error) << resumed.error->message();
  EXPECT_EQ(resumed.digest, expected.digest);
  EXPECT_EQ(resumed.parameters, expected.parameters);
  EXPECT_TRUE(resumed_end == at_end);
  EXPECT_EQ(resumed.outcomes.back().step, 4u);
  EXPECT_TRUE(resumed.above_prediction.empty()) << resumed.above_prediction.front();
}

TEST_P(EngineStates, AreRestoredPieceByPieceHoweverLargeATileIs) {
  RunOptions first = run(1);
  first.model = {};
  first.model.units = {{.name = "large", .parameters = {{"weight", ElementCount(600'001), 0}}}};
  first.config.penstock.tile_elements = ElementCount(1 << 20);
  first.steps = first.micro_batches = 1;
  SavedStates saved(first.model), again(first.model);
  first.after_steps = [&](Engine& engine) { return saved.save(engine); };
  ASSERT_FALSE(train(first).error);

  RunOptions second = first;
  second.first_step = 1;
  second.restore = [&](Engine& engine) { return saved.restore(engine, 1); };
  second.after_steps = [&](Engine& engine) { return again.save(engine); };
  const RunResult restored = train(second);

  ASSERT_FALSE(restored.error) << restored.error->message();
  EXPECT_TRUE(again == saved);
  EXPECT_EQ(saved.longest_restored(), 262'144u);
}

// From NVMe to the device and back.
TEST_P(EngineStates, ContinueARunWhereTheyAreKeptOnTheDevice) {
  const auto kept = [] {
    RunOptions options = run(2);
    options.device_memory = tiers::DeviceMemory::separate;
    options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::none;
    return options;
  };
  if (GetParam().must_be_offloaded()) return;
  for (const bool to_device : {true, false}) {
    RunOptions whole = run(2), first = to_device ? run(2) : kept(), second = to_device ? kept() : run(2);
    whole.steps = second.steps = 4;
    const RunResult expected = train(whole);
    ASSERT_FALSE(expected.error) << expected.error->message();
    first.steps = second.first_step = 2;
    SavedStates saved(first.model), again(first.model);
    first.after_steps = [&](Engine& engine) { return saved.save(engine); };
    ASSERT_FALSE(train(first).error);
    second.restore = [&](Engine& engine) -> Result<void> {
      PENSTOCK_TRY(saved.restore(engine, 2));
      return again.save(engine);
    };

    const RunResult resumed = train(second);

    ASSERT_FALSE(resumed.error) << resumed.error->message();
    EXPECT_EQ(resumed.digest, expected.digest);
    EXPECT_EQ(resumed.parameters, expected.parameters);
    EXPECT_TRUE(again == saved);
  }
}

TEST_P(EngineStates, AreRestoredOnAnotherNumberOfRanks) {
  RunOptions first = run(2);
  SavedStates saved(first.model);
  first.after_steps = [&](Engine& engine) { return saved.save(engine); };
  const RunResult expected = train(first);
  ASSERT_FALSE(expected.error) << expected.error->message();
  for (const std::uint32_t ranks : {1u, 3u}) {
    RunOptions other = run(ranks);
    other.steps = other.first_step = 3;
    SavedStates again(other.model);
    other.restore = [&](Engine& engine) { return saved.restore(engine, 3); };
    other.after_steps = [&](Engine& engine) { return again.save(engine); };
    const RunResult restored = train(other);
    ASSERT_FALSE(restored.error) << restored.error->message();
    EXPECT_EQ(restored.digest, expected.digest) << ranks;
    EXPECT_EQ(restored.parameters, expected.parameters) << ranks;
    if (GetParam().format != StateFormat::split_q8) {  // other elements share a scale there
      EXPECT_TRUE(again == saved) << ranks;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, EngineStates,
                         testing::Values(RunFormat{StateFormat::fp32}, RunFormat{StateFormat::split},
                                         RunFormat{StateFormat::split_bf16}, RunFormat{StateFormat::split_q8},
                                         narrow_formats[0], narrow_formats[1], narrow_formats[2]),
                         [](const auto& tested) { return tested.param.name(); });

TEST(EngineRestore, RefusesAMasterWhoseParameterWouldBeInfinite) {
  struct Limit {
    DType dtype;
    float least_infinite;
  };
  for (const Limit& limit : {Limit{DType::fp16, 65520.0f}, Limit{DType::bf16, 0x1.FFp127f}}) {
    RunOptions options{.ranks = 1, .steps = 1, .seed = 3};
    options.config.dtype = options.config.grad_accum_dtype = limit.dtype;
    options.after_steps = [&](Engine& engine) -> Result<void> {
      for (const float sign : {1.0f, -1.0f}) {
        const auto with = [&](float value) {
          return engine.initialize([=](ParameterId, std::uint64_t, std::span<float> values) {
            std::fill(values.begin(), values.end(), 0.5f);
            values.back() = sign * value;
          });
        };
        const auto refused = with(limit.least_infinite);
        EXPECT_FALSE(refused) << to_string(limit.dtype);
        if (refused) continue;
        EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
        EXPECT_NE(refused.error().message().find("finite in " + std::string(to_string(limit.dtype))),
                  std::string::npos)
            << refused.error().message();
        EXPECT_TRUE(with(std::nextafter(limit.least_infinite, 0.0f)));
      }
      return ok();
    };
    const RunResult result = train(options);
    EXPECT_FALSE(result.error) << result.error->message();
  }
}

TEST(EngineRestore, AnErrorOfTheSourceIsReturnedAndTheCallCanBeRepeated) {
  RunOptions options{.ranks = 1, .steps = 1, .seed = 3};
  SavedStates saved(options.model);
  options.after_steps = [&](Engine& engine) -> Result<void> {
    EXPECT_TRUE(saved.save(engine));
    const auto unreadable = [](ParameterId, StateKind, std::uint64_t,
                               std::span<const float>) -> Result<void> {
      return Error(ErrorCode::no_space, "checkpoint");
    };
    const auto stopped = engine.read_states(unreadable);
    EXPECT_EQ(stopped.error().code(), ErrorCode::no_space);
    EXPECT_EQ(engine.status(), Engine::Status::ready);

    const auto negative = [](ParameterId, StateKind kind, std::uint64_t,
                             std::span<float> values) -> Result<void> {
      if (kind == StateKind::second_moment) values.back() = -1.0f;
      return ok();
    };
    const auto refused = engine.restore(1, negative);
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message().find("second_moment"), std::string::npos)
        << refused.error().message();
    EXPECT_EQ(engine.status(), Engine::Status::ready);
    EXPECT_FALSE(engine.digest());  // the parameters have no values

    EXPECT_TRUE(saved.restore(engine, 1));
    SavedStates again(options.model);
    EXPECT_TRUE(again.save(engine));
    EXPECT_TRUE(again == saved);
    return ok();
  };
  const RunResult result = train(options);
  EXPECT_FALSE(result.error) << result.error->message();
}

}  // namespace
}  // namespace penstock::zero::test
