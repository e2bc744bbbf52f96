// Gradients in memory of the caller, and units without one, are judged where they enter: a refusal changes nothing.
#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/rank.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace penstock::zero {
namespace {

/// "head" shares the weight of "embed".
ModelLayout model() {
  ModelLayout made;
  made.units = {
      {.name = "embed", .parameters = {{"weight", ElementCount(256), 0}}},
      {.name = "block", .parameters = {{"up", ElementCount(100), 0}, {"down", ElementCount(50), 0}}},
      {.name = "head", .parameters = {{"gain", ElementCount(1), 0}}, .shared = {{0, 0}}}};
  return made;
}

class CallerGradients : public testing::Test {
 protected:
  CallerGradients() {
    rank_->engine()
        .initialize(
            [](ParameterId, std::uint64_t, std::span<float> values) { std::ranges::fill(values, 1.0f); })
        .value();
    engine_.begin_step({}).value();
  }

  static HostTensor tensor(std::vector<float>& values, std::size_t count) {
    return {HostSpan(std::span(values).first(count)), DType::fp32};
  }
  void expect_refused(std::uint32_t unit, const std::vector<GradientSource>& gradients,
                      const std::string& text) {
    const auto refused = engine_.reduce(unit, gradients, *stream_);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message().find(text), std::string::npos) << refused.error().message();
    EXPECT_NE(refused.error().message().find("[Engine::reduce]"), std::string::npos)
        << refused.error().message();
    EXPECT_EQ(engine_.status(), Engine::Status::ready);
  }
  Result<void> reduce_all() {
    PENSTOCK_TRY(
        engine_.reduce(2, std::vector<GradientSource>{tensor(values_, 1), tensor(values_, 256)}, *stream_));
    PENSTOCK_TRY(
        engine_.reduce(1, std::vector<GradientSource>{tensor(values_, 100), tensor(values_, 50)}, *stream_));
    return engine_.reduce(0, std::vector<GradientSource>{tensor(values_, 256)}, *stream_);
  }

  std::unique_ptr<Rank> rank_ = Rank::create({.config = {}, .model = model()}).value();
  Engine& engine_ = rank_->engine();
  std::unique_ptr<tiers::Stream> stream_ = rank_->device().create_stream().value();
  std::vector<float> values_ = std::vector<float>(1000, 0.5f);
};

TEST_F(CallerGradients, OfAnotherShapeAreRefused) {
  expect_refused(3, {}, "below 3");
  expect_refused(1, {}, "block, wanted 2, one for each parameter");
  expect_refused(1, {tensor(values_, 100)}, "got 1");
  expect_refused(1, {tensor(values_, 50), tensor(values_, 100)}, "gradient of up");
  expect_refused(2, {tensor(values_, 1)}, "shared ones included");
  expect_refused(0, {HostTensor{HostSpan(nullptr, ByteCount(1024)), DType::fp32}}, "not null");
  expect_refused(
      0,
      {HostTensor{HostSpan(reinterpret_cast<std::byte*>(values_.data()) + 1, ByteCount(1024)), DType::fp32}},
      "a multiple of 4");
  expect_refused(0, {HostTensor{HostSpan(std::span(values_).first(256)), DType(9)}}, "dtype");
  expect_refused(0, {DeviceTensor{}}, "gradient of weight");

  ASSERT_TRUE(reduce_all());
  EXPECT_TRUE(engine_.step());
}

TEST_F(CallerGradients, InMemoryOfTheEngineAreRefused) {
  auto gradients = engine_.gradients(0, *stream_).value();
  const DeviceTensor slot = gradients.slots()[0].tensor;
  expect_refused(0, {slot}, "memory of the engine");
  expect_refused(0, {HostTensor{tiers::HostDevice::bytes(slot.bytes), DType::fp32}}, "slots of gradients()");
}

TEST_F(CallerGradients, AreRefusedOnceTheStepHasThem) {
  ASSERT_TRUE(reduce_all());
  const std::vector<GradientSource> more = {tensor(values_, 100), tensor(values_, 50)};
  expect_refused(1, more, "[Engine::reduce]");
  expect_refused(1, more, "StepOptions::micro_batches");
  EXPECT_TRUE(engine_.step());
}

TEST_F(CallerGradients, AreRoundedToTheDtypeOfTheParameters) {
  std::vector<std::uint16_t> bf16(256, 0x3f00);  // 0.5
  const HostTensor half{HostSpan(std::span(bf16)), DType::bf16};
  ASSERT_TRUE(engine_.reduce(2, std::vector<GradientSource>{tensor(values_, 1), half}, *stream_));
  ASSERT_TRUE(
      engine_.reduce(1, std::vector<GradientSource>{tensor(values_, 100), tensor(values_, 50)}, *stream_));
  ASSERT_TRUE(engine_.reduce(0, std::vector<GradientSource>{half}, *stream_));
  const auto outcome = engine_.step().value();
  // 256 gradients of 1, from two units, and 151 of 0.5.
  EXPECT_NEAR(outcome.gradient_norm, std::sqrt(256 + 151 * 0.25), 1e-6);
}

class UnitsWithoutGradient : public CallerGradients {
 protected:
  void expect_step_refused(std::vector<std::uint32_t> units, const std::string& text) {
    const auto refused = engine_.begin_step({.micro_batches = 3, .units_without_gradient = std::move(units)});
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message().find(text), std::string::npos) << refused.error().message();
  }
};

TEST_F(UnitsWithoutGradient, ThatCannotBeListedAreRefused) {
  expect_step_refused({3}, "below 3");
  expect_step_refused({1, 1}, "listed twice");
  expect_step_refused({0}, "unit 2 (head) too");

  ASSERT_TRUE(reduce_all());  // one micro-batch, as before
  EXPECT_TRUE(engine_.step());
}

TEST_F(UnitsWithoutGradient, AreNotReduced) {
  ASSERT_TRUE(engine_.begin_step({.units_without_gradient = {1}}));
  expect_refused(1, {tensor(values_, 100), tensor(values_, 50)}, "gets no gradient");
  EXPECT_FALSE(engine_.gradients(1, *stream_));
  ASSERT_TRUE(
      engine_.reduce(2, std::vector<GradientSource>{tensor(values_, 1), tensor(values_, 256)}, *stream_));
  EXPECT_FALSE(engine_.step());  // that of unit 0 is missing
  ASSERT_TRUE(engine_.reduce(0, std::vector<GradientSource>{tensor(values_, 256)}, *stream_));
  EXPECT_TRUE(engine_.step());
}

TEST_F(UnitsWithoutGradient, MayBeAllUnits) {
  ASSERT_TRUE(engine_.begin_step({.units_without_gradient = {0, 1, 2}}));
  const std::string before = engine_.digest().value();
  const auto outcome = engine_.step();
  ASSERT_TRUE(outcome) << outcome.error().message();
  EXPECT_EQ(outcome->step, 1u);
  EXPECT_EQ(engine_.digest().value(), before);
}

}  // namespace
}  // namespace penstock::zero
