// gradients() or reduce() called again for a unit, as after an exception in a backward.
#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/rank.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero {
namespace {

constexpr std::uint64_t count = 1024;

/// Units a, b, c; c shares the parameter of b. Every gradient is 1, so that the norm counts what was added.
class RepeatedGradients : public testing::TestWithParam<tiers::DeviceMemory> {
 protected:
  RepeatedGradients() {
    ModelLayout model;
    for (const char* name : {"a", "b", "c"}) {
      model.units.push_back({.name = name, .parameters = {{"weight", ElementCount(count), 0}}});
    }
    model.units[2].shared = {{1, 0}};
    Config config;
    config.gradient_clipping = 0;
    config.gradient_accumulation_steps = 2;
    rank_ = Rank::create({.config = config,
                          .model = model,
                          .make_accelerator = [](ByteCount budget) -> Result<Accelerator> {
                            return make_host_accelerator({.memory = budget, .location = GetParam()});
                          }})
                .value();
    stream_ = rank_->device().create_stream().value();
    engine().initialize([](ParameterId, std::uint64_t, std::span<float>) {}).value();
  }

  Engine& engine() { return rank_->engine(); }
  /// Does as the slots say.
  static void write(const UnitGradients& gradients, float value = 1) {
    for (const GradientSlot& slot : gradients.slots()) {
      const auto elements = tiers::HostDevice::bytes(slot.tensor.bytes).as<float>();
      for (float& element : elements) element = slot.accumulate ? element + value : value;
    }
  }
  void reduce(std::uint32_t unit) {
    auto gradients = engine().gradients(unit, *stream_).value();
    write(gradients);
    engine().reduce(std::move(gradients), *stream_).value();
  }
  /// Units that own one parameter get gradient 1 in each micro-batch, the shared one 2.
  double norm_of(std::uint32_t micro_batches) { return micro_batches * std::sqrt(count * (1.0 + 4.0 + 1.0)); }
  void expect_refused(const Result<void>& result, const std::string& words) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(result.error().message().find(words), std::string::npos) << result.error().message();
    EXPECT_EQ(engine().status(), Engine::Status::ready);
  }
  Result<void> gradients(std::uint32_t unit) {
    const auto answer = engine().gradients(unit, *stream_);
    if (!answer) return answer.error();
    return ok();
  }

  std::unique_ptr<Rank> rank_;
  std::unique_ptr<tiers::Stream> stream_;
};

TEST_P(RepeatedGradients, ReplaceWhatWasWrittenBefore) {
  engine().begin_step({}).value();
  for (int micro = 0; micro < 2; ++micro) {
    reduce(2);
    reduce(1);
    write(engine().gradients(0, *stream_).value(), 1000);  // as before an exception
    reduce(0);
  }

  EXPECT_DOUBLE_EQ(engine().step().value().gradient_norm, norm_of(2));
}

TEST_P(RepeatedGradients, ThatAreMissingAreThoseOfTheUnitsNamed) {
  const auto step = [this]() -> Result<void> {
    const auto outcome = engine().step();
    if (!outcome) return outcome.error();
    return ok();
  };
  engine().begin_step({.micro_batches = 1}).value();
  reduce(1);
  expect_refused(step(), ": a, c, wanted 1, got 0");
  reduce(0);
  expect_refused(step(), ": c, wanted 1, got 0");  // not b, whose parameter it shares
  reduce(2);
  EXPECT_TRUE(step());
}

TEST_P(RepeatedGradients, AreReplacedByGradientsOfTheCaller) {
  engine().begin_step({.micro_batches = 1}).value();
  reduce(2);
  reduce(1);
  write(engine().gradients(0, *stream_).value(), 1000);
  std::vector<float> mine(count, 1);
  engine()
      .reduce(0, std::vector<GradientSource>{HostTensor{HostSpan(std::span(mine)), DType::fp32}}, *stream_)
      .value();

  EXPECT_DOUBLE_EQ(engine().step().value().gradient_norm, norm_of(1));
}

TEST_P(RepeatedGradients, AreRefusedWhereUnitsAddToOneSlot) {
  engine().begin_step({.micro_batches = 1}).value();
  auto of_c = engine().gradients(2, *stream_).value();
  write(of_c);
  expect_refused(gradients(2), "pass the first result to reduce()");
  engine().reduce(std::move(of_c), *stream_).value();
  reduce(1);
  reduce(0);

  EXPECT_DOUBLE_EQ(engine().step().value().gradient_norm, norm_of(1));
}

TEST_P(RepeatedGradients, AreRefusedBeforeTheOtherUnitsOfASharedParameter) {
  engine().begin_step({}).value();
  reduce(2);
  expect_refused(gradients(2), "first reduce the other units that share b");
  reduce(1);
  reduce(0);
  for (const std::uint32_t unit : {2u, 1u, 0u}) reduce(unit);

  EXPECT_DOUBLE_EQ(engine().step().value().gradient_norm, norm_of(2));
}

TEST_P(RepeatedGradients, AreReducedOnce) {
  engine().begin_step({.micro_batches = 1}).value();
  auto first = engine().gradients(0, *stream_).value();
  auto second = engine().gradients(0, *stream_).value();
  write(second);
  engine().reduce(std::move(first), *stream_).value();
  expect_refused(engine().reduce(std::move(second), *stream_), "already reduced");
  reduce(2);
  reduce(1);

  EXPECT_DOUBLE_EQ(engine().step().value().gradient_norm, norm_of(1));
}

TEST_P(RepeatedGradients, AreNoneAfterTheirStepWasAbandoned) {
  engine().begin_step({.micro_batches = 1}).value();
  auto stale = engine().gradients(0, *stream_).value();
  engine().abandon_step(*stream_).value();
  engine().begin_step({.micro_batches = 1}).value();

  expect_refused(engine().reduce(std::move(stale), *stream_), "abandoned");

  for (const std::uint32_t unit : {2u, 1u, 0u}) reduce(unit);
  EXPECT_DOUBLE_EQ(engine().step().value().gradient_norm, norm_of(1));
}

INSTANTIATE_TEST_SUITE_P(On, RepeatedGradients,
                         testing::Values(tiers::DeviceMemory::host, tiers::DeviceMemory::separate),
                         [](const auto& memory) {
                           return memory.param == tiers::DeviceMemory::host ? "Host" : "Separate";
                         });

}  // namespace
}  // namespace penstock::zero
