#include <penstock/zero/config/config.hpp>

#include "kit/golden.hpp"

#include <gtest/gtest.h>
#include <json/json.h>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace penstock::zero {
namespace {

/// All but those that stay at the minimum without an error, for which ds_config.json has no key.
std::vector<Json::Value> cases() {
  std::vector<Json::Value> with_error;
  const Json::Value reference = test::golden_json("loss_scaler.json");
  for (const Json::Value& one : reference["cases"]) {
    if (one["raise_error_at_min_scale"].asBool()) with_error.push_back(one);
  }
  return with_error;
}

Config config_of(const Json::Value& one) {
  Config config;
  if (one["kind"] == "not_fp16") return config;
  config.dtype = config.grad_accum_dtype = DType::fp16;
  config.loss_scale = one["kind"] == "static" ? one["init_scale"].asFloat() : 0.0f;
  config.dynamic_loss_scale = {.initial_scale_power = 0,
                               .loss_scale_window = one["scale_window"].asUInt(),
                               .hysteresis = one["hysteresis"].asUInt(),
                               .consecutive_hysteresis = one["consecutive_hysteresis"].asBool(),
                               .min_loss_scale = one["min_scale"].asUInt()};
  return config;
}

/// The reference has first scales that are no power of two, which no file can ask for.
LossScaler scaler_of(const Json::Value& one) {
  LossScaler scaler = config_of(one).loss_scaler();
  if (!scaler.is_dynamic()) return scaler;
  LossScaler::State first = scaler.state();
  first.scale = one["init_scale"].asDouble();
  scaler.restore(first).value();
  return scaler;
}

std::string case_name(const testing::TestParamInfo<Json::Value>& info) {
  return info.param["name"].asString();
}

class GoldenLossScaler : public testing::TestWithParam<Json::Value> {};

TEST_P(GoldenLossScaler, MovesAsThatOfDeepSpeed) {
  const Json::Value& expected = GetParam();
  LossScaler scaler = scaler_of(expected);
  const std::string overflow = expected["overflow"].asString();
  for (Json::ArrayIndex i = 0; i < overflow.size(); ++i) {
    const LossScaler::State before = scaler.state();
    const auto updated = scaler.update(overflow[i] == '1');
    if (expected.isMember("raised") && i == expected["raised"]["at_update"].asUInt()) {
      ASSERT_FALSE(updated);
      EXPECT_EQ(updated.error().code(), ErrorCode::non_finite);
      EXPECT_EQ(scaler.state(), before);
      return;
    }
    ASSERT_TRUE(updated) << updated.error().message();
    EXPECT_EQ(scaler.scale(), std::strtod(expected["scale_after_hex"][i].asCString(), nullptr)) << i;
    if (!scaler.is_dynamic()) continue;
    EXPECT_EQ(scaler.state().hysteresis, expected["hysteresis_after"][i].asInt64()) << i;
    EXPECT_EQ(scaler.state().last_overflow, expected["last_overflow_iter_after"][i].asInt64()) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenLossScaler, testing::ValuesIn(cases()), case_name);

TEST(LossScaler, BeginsAtTheConfiguredPowerOfTwo) {
  Config config;
  config.dtype = config.grad_accum_dtype = DType::fp16;
  config.loss_scale = 0;
  config.dynamic_loss_scale.initial_scale_power = 12;
  EXPECT_EQ(config.loss_scaler().scale(), 4096);
  config.loss_scale = 128;
  EXPECT_EQ(config.loss_scaler().scale(), 128);
  EXPECT_FALSE(config.loss_scaler().is_dynamic());
}

TEST(LossScaler, ContinuesFromAStateThatWasSaved) {
  const DynamicLossScale dynamic{.initial_scale_power = 10, .loss_scale_window = 3, .hysteresis = 2};
  LossScaler whole(dynamic), first(dynamic);
  const std::string overflow = "001101000000110001";
  for (std::size_t i = 0; i < overflow.size(); ++i) {
    LossScaler resumed(dynamic);
    ASSERT_TRUE(resumed.restore(first.state()));
    first = resumed;
    ASSERT_TRUE(whole.update(overflow[i] == '1'));
    ASSERT_TRUE(first.update(overflow[i] == '1'));
    EXPECT_EQ(first.state(), whole.state());
  }
}

// Of a run in bf16, or with a static scale: with a hysteresis of 0 no overflow would ever lower the scale.
TEST(LossScaler, TakesNothingFromAStaticScale) {
  LossScaler scaler(DynamicLossScale{.initial_scale_power = 8});

  ASSERT_TRUE(scaler.restore(LossScaler(128.0).state()));

  EXPECT_EQ(scaler.scale(), 256);
  ASSERT_TRUE(scaler.update(/*overflow=*/true));
  ASSERT_TRUE(scaler.update(/*overflow=*/true));
  EXPECT_EQ(scaler.scale(), 128);
}

TEST(LossScaler, NeverReachesZeroWhereTheConfiguredMinimumIsZero) {
  LossScaler scaler(DynamicLossScale{.initial_scale_power = 0, .hysteresis = 1, .min_loss_scale = 0});
  Result<void> updated = ok();
  for (int i = 0; i < 2000 && updated; ++i) updated = scaler.update(true);
  ASSERT_FALSE(updated);
  EXPECT_EQ(scaler.scale(), std::numeric_limits<double>::denorm_min());
}

TEST(LossScaler, RefusesStatesThatNoRunHasAndKeepsItsOwn) {
  const LossScaler fresh{DynamicLossScale{}};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const LossScaler::State wrong[] = {
      {.scale = nan},  {.scale = INFINITY},   {.scale = 0},         {.scale = -2},
      {.updates = -1}, {.last_overflow = -2}, {.last_overflow = 0}, {.updates = 3, .last_overflow = 3},
  };
  for (const LossScaler::State& state : wrong) {
    LossScaler scaler = fresh;
    EXPECT_FALSE(scaler.restore(state));
    EXPECT_EQ(scaler.state(), fresh.state());
  }
  LossScaler fixed(128);
  EXPECT_FALSE(fixed.restore({.scale = 64}));
  EXPECT_TRUE(fixed.restore({.scale = 128}));
}

}  // namespace
}  // namespace penstock::zero
