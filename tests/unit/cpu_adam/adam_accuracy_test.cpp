#include "adam_reference.hpp"
#include "tile_fixture.hpp"

#include <gtest/gtest.h>
#include <string>
#include <tuple>

namespace penstock::test {

using namespace cpu_adam;
namespace {

struct Worst {
  double p = 0, m = 0, v = 0;
};

/// One step from the same fp32 state, every element against the reference.
Worst worst_after_one_step(const AdamConfig& config, std::uint64_t step, float factor,
                           const TileValues& values, DType gradient_dtype) {
  TileMemory memory(values.size(), gradient_dtype, DType::fp32);
  memory.set(values);
  std::vector<AdamReference> references(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    references[i] = {.p = values.master[i], .m = values.m[i], .v = values.v[i]};
    references[i].step(config, step, static_cast<double>(memory.gradient(i)) * factor);
  }

  const auto outcome = adam_step(config, step, factor, memory.tile());

  EXPECT_TRUE(outcome.has_value());
  Worst worst;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const AdamReference& r = references[i];
    worst.p = std::max(worst.p, ulps(memory.master(i), r.p, r.scale_of_terms.p));
    worst.m = std::max(worst.m, ulps(memory.m(i), r.m, r.scale_of_terms.m));
    worst.v = std::max(worst.v, ulps(memory.v(i), r.v, r.scale_of_terms.v));
    EXPECT_EQ(memory.parameter(i), memory.master(i));
  }
  return worst;
}

using Case = std::tuple<AdamDecay, float /*weight decay*/, bool /*bias correction*/, DType, std::uint64_t>;
class AdamAccuracy : public testing::TestWithParam<Case> {};

// Each bound is the sum of the roundings on the way to the result: the gradient's factor, L2's two, a product
// and a sum for m; squares twice what they are given for v. The update's relative error is small beside p.
TEST_P(AdamAccuracy, IsWithinAFewUlpsOfADoubleReferenceInEveryElement) {
  const auto& [mode, weight_decay, bias_correction, gradient_dtype, step] = GetParam();
  const AdamConfig config{.learning_rate = 3e-4f,
                          .beta2 = 0.95f,
                          .weight_decay = weight_decay,
                          .decay_mode = mode,
                          .bias_correction = bias_correction};

  const Worst worst =
      worst_after_one_step(config, step, 1.0f / 3.0f, random_values(20000, step), gradient_dtype);

  EXPECT_LE(worst.m, 3.0);
  EXPECT_LE(worst.v, 5.0);
  EXPECT_LE(worst.p, 6.0);
}

std::string name_of(const testing::TestParamInfo<Case>& parameters) {
  const auto& [mode, weight_decay, bias_correction, gradient_dtype, step] = parameters.param;
  return std::string(mode == AdamDecay::decoupled ? "adamw" : "l2") + (weight_decay > 0 ? "_decay" : "") +
         (bias_correction ? "_corrected_" : "_") + std::string(to_string(gradient_dtype)) + "_step" +
         std::to_string(step);
}

INSTANTIATE_TEST_SUITE_P(Modes, AdamAccuracy,
                         testing::Combine(testing::Values(AdamDecay::decoupled, AdamDecay::l2),
                                          testing::Values(0.0f, 0.1f), testing::Bool(),
                                          testing::Values(DType::fp32, DType::bf16, DType::fp16),
                                          testing::Values<std::uint64_t>(1, 2, 1000, 10'000'000)),
                         name_of);

TEST(AdamAccuracy, KeepsSubnormalsZerosAndTheirSigns) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  TileValues values;
  for (const float p : {0.0f, -0.0f, tiny, -tiny, 1e-40f, 3e38f}) {
    for (const float g : {0.0f, -0.0f, tiny, -1e-40f, 1e-30f}) {
      values.master.push_back(p);
      values.gradient.push_back(g);
      values.m.push_back(g);
      values.v.push_back(std::abs(g));
    }
  }
  const Worst worst = worst_after_one_step({}, 3, 1.0f, values, DType::fp32);
  EXPECT_LE(worst.m, 3.0);
  EXPECT_LE(worst.v, 5.0);
  EXPECT_LE(worst.p, 6.0);

  TileMemory memory(1, DType::fp32, DType::bf16);
  memory.set({.master = {-0.0f}, .m = {0.0f}, .v = {0.0f}, .gradient = {0.0f}});
  ASSERT_TRUE(adam_step({}, 1, 1.0f, memory.tile()).has_value());
  EXPECT_TRUE(std::signbit(memory.parameter(0))) << "-0 came back as +0";
}

TEST(AdamAccuracy, ChangesOnlyTheMomentsWhenTheLearningRateIsZero) {
  const TileValues values = random_values(1000, 5);
  TileMemory memory(1000, DType::bf16, DType::bf16);
  memory.set(values);

  ASSERT_TRUE(adam_step({.learning_rate = 0.0f, .weight_decay = 0.1f}, 7, 1.0f, memory.tile()).has_value());

  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(memory.master(i), values.master[i]);
    ASSERT_EQ(memory.parameter(i), rounded_to(DType::bf16, values.master[i]));
    ASSERT_NE(memory.m(i), values.m[i]);
  }
}

TEST(AdamAccuracy, RoundsTheEmittedParameterToNearestEven) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    TileMemory memory(5000, DType::fp32, dtype);
    memory.set(random_values(5000, 11));

    ASSERT_TRUE(adam_step({}, 1, 1.0f, memory.tile()).has_value());

    for (std::size_t i = 0; i < 5000; ++i) {
      ASSERT_EQ(memory.parameter(i), rounded_to(dtype, memory.master(i))) << to_string(dtype) << " " << i;
    }
  }
}

}  // namespace
}  // namespace penstock::test
