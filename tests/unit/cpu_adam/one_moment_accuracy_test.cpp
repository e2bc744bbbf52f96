// Lion and Adagrad: every element against the reference in double.

#include "one_moment_tile.hpp"

#include <gtest/gtest.h>
#include <limits>
#include <variant>

namespace penstock::test {
namespace {

constexpr OneMomentKind plain(Optimizer optimizer) {
  return {optimizer, StateFormat::fp32, DType::fp32, DType::fp32};
}

/// One step from the same fp32 state. Each bound is the sum of the roundings on the way to the result, as for Adam.
/// Of at most `unclear_max` elements the sign of Lion's direction depends on roundings.
void expect_accurate(const OneMomentKind& kind, const Hyperparameters& config, float factor,
                     const TileValues& values, std::size_t unclear_max = 1) {
  OneMomentTile memory(kind, values.size());
  memory.set(values);
  std::vector<OneMomentReference> references(values.size());
  std::size_t unclear = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    references[i] = {.p = memory.master(i), .moment = memory.moment(i)};
    const double g = static_cast<double>(memory.gradient(i)) * factor;
    std::visit([&](const auto& one) { references[i].step(one, g); }, config);
  }

  const auto outcome = optimizer_step(config, 1, factor, memory.tile());

  ASSERT_TRUE(outcome.has_value()) << outcome.error().message();
  EXPECT_FALSE(outcome->first_non_finite_block.has_value());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const OneMomentReference& r = references[i];
    ASSERT_LE(ulps(memory.moment(i), r.moment, r.moment_scale), kind.optimizer == Optimizer::lion ? 3.0 : 5.0)
        << kind << ", element " << i;
    if (r.sign_is_rounding) {
      ++unclear;
    } else {
      const double step_of_storage = kind.master() == DType::fp32 ? 0 : spacing_of(kind.master(), r.p);
      ASSERT_LT(std::abs(memory.master(i) - r.p) - step_of_storage,
                6.5 * std::ldexp(1.0, std::ilogb(std::max(r.p_scale, 0x1p-126)) - 23))
          << kind << ", element " << i;
    }
    ASSERT_EQ(memory.parameter(i), rounded_to(kind.parameter, memory.master(i))) << kind << ", element " << i;
  }
  EXPECT_LE(unclear, unclear_max);
}

class OneMomentAccuracy : public testing::TestWithParam<OneMomentKind> {};
INSTANTIATE_TEST_SUITE_P(Every, OneMomentAccuracy, testing::ValuesIn(one_moment_kinds()),
                         [](const auto& kind) { return kind.param.name(); });

TEST_P(OneMomentAccuracy, IsWithinAFewUlpsOfADoubleReferenceInEveryElement) {
  for (const std::size_t count :
       std::initializer_list<std::size_t>{0, 1, 15, 16, 17, 63, 65, 16383, 16384, 16385, 40001}) {
    for (const float weight_decay : {0.0f, 0.1f}) {
      expect_accurate(GetParam(), one_moment_config(GetParam().optimizer, 3e-4f, weight_decay), 1.0f / 3.0f,
                      random_values(count, count + 1));
    }
  }
}

TEST_P(OneMomentAccuracy, OfTheDefaultHyperparametersToo) {
  const bool lion = GetParam().optimizer == Optimizer::lion;
  const Hyperparameters config = lion ? Hyperparameters(LionConfig{}) : Hyperparameters(AdagradConfig{});

  expect_accurate(GetParam(), config, 1.0f, random_values(5000, 3));
}

TEST(OneMomentAccuracy, KeepsSubnormalsZerosAndTheirSigns) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  TileValues values;
  for (const float p : {0.0f, -0.0f, tiny, -tiny, 1e-40f, 1e30f}) {
    for (const float g : {0.0f, -0.0f, tiny, -1e-40f, 1e-30f}) {
      values.master.push_back(p);
      values.gradient.push_back(g);
      values.m.push_back(g);
      values.v.push_back(std::abs(g));
    }
  }
  for (const Optimizer optimizer : {Optimizer::lion, Optimizer::adagrad}) {
    expect_accurate(plain(optimizer), one_moment_config(optimizer, 1e-3f, 0.0f), 1.0f, values, 6);

    OneMomentTile memory({optimizer, StateFormat::fp32, DType::fp32, DType::bf16}, 1);
    memory.set({.master = {-0.0f}, .m = {0.0f}, .v = {0.0f}, .gradient = {0.0f}});
    ASSERT_TRUE(
        optimizer_step(one_moment_config(optimizer, 1e-3f, 0.0f), 1, 1.0f, memory.tile()).has_value());
    EXPECT_TRUE(std::signbit(memory.parameter(0))) << "-0 came back as +0";
  }
}

// Exact: with a learning rate and masters that are powers of two nothing is rounded.
TEST(Lion, MovesByTheSignOfTheInterpolationAndNotAtAllWhereThatIsZero) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float moments[] = {0.0f, -0.0f, 1.0f, -1.0f, 0.0f, 0.0f, 2.0f, -8.0f, tiny, 0.0f, 3e38f, 1.0f};
  const float gradients[] = {0.0f,  0.0f, 0.0f, -0.0f,  5.0f, -tiny * 4,
                             -2.0f, 8.0f, 0.0f, -3e38f, 0.0f, -1.0f};
  const double steps[] = {0, 0, 1, -1, 1, -1, 0, 0, 1, -1, 1, 0};
  // Enough copies for lanes of every width and for scalar tails.
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    TileValues values;
    for (std::size_t i = 0; i < 12 * 11; ++i) {
      values.master.push_back(1.0f);
      values.m.push_back(moments[i % 12]);
      values.v.push_back(0.0f);
      values.gradient.push_back(gradients[i % 12]);
    }
    OneMomentTile memory(plain(Optimizer::lion), values.size());
    memory.set(values);

    const LionConfig config{.learning_rate = 0.125f, .beta1 = 0.5f, .beta2 = 0.75f};
    ASSERT_TRUE(optimizer_step(config, 1, 1.0f, memory.tile(), {.isa = isa}).has_value());

    for (std::size_t i = 0; i < values.size(); ++i) {
      // Half of the smallest subnormal is rounded to zero.
      const double step = values.m[i] == tiny ? 0 : steps[i % 12];
      ASSERT_EQ(memory.master(i), 1.0 - 0.125 * step) << to_string(isa) << ", element " << i;
    }
  }
}

TEST(Adagrad, KeepsElementsWithoutGradientsWhereEpsilonIsZero) {
  OneMomentTile memory(plain(Optimizer::adagrad), 3);
  memory.set(
      {.master = {1.0f, 0.0f, 1.0f}, .m = {0, 0, 0}, .v = {0, 0, 0}, .gradient = {0.0f, 0.0f, 1e-30f}});

  const auto outcome = optimizer_step(AdagradConfig{.epsilon = 0.0f}, 1, 1.0f, memory.tile());

  ASSERT_TRUE(outcome.has_value());
  EXPECT_FALSE(outcome->first_non_finite_block.has_value());
  EXPECT_EQ(memory.master(0), 1.0f);
  EXPECT_EQ(memory.master(1), 0.0f);
  EXPECT_EQ(memory.master(2), 1.0f) << "1e-30 / 2^-64 × 0.01 is far below half an ULP of 1";
}

// The result of torch.optim.Adagrad's formula over several steps; a run in double.
TEST(Adagrad, SumsTheSquaresOfAllSteps) {
  OneMomentTile memory(plain(Optimizer::adagrad), 1);
  memory.set({.master = {1.0f}, .m = {0}, .v = {0}, .gradient = {0.5f}});
  for (std::uint64_t step = 1; step <= 4; ++step) {
    ASSERT_TRUE(optimizer_step(AdagradConfig{.learning_rate = 0.1f}, step, 2.0f, memory.tile()).has_value());
  }

  EXPECT_EQ(memory.moment(0), 4.0f);
  EXPECT_NEAR(memory.master(0), 1 - 0.1 * (1 + 1 / std::sqrt(2.0) + 1 / std::sqrt(3.0) + 0.5), 4 * 0x1p-24);
}

TEST(OneMomentAccuracy, ChangesOnlyTheMomentWhenTheLearningRateIsZero) {
  const TileValues values = random_values(1000, 5);
  for (const Optimizer optimizer : {Optimizer::lion, Optimizer::adagrad}) {
    OneMomentTile memory({optimizer, StateFormat::fp32, DType::bf16, DType::bf16}, 1000);
    memory.set(values);
    std::vector<float> moments;
    for (std::size_t i = 0; i < values.size(); ++i) moments.push_back(memory.moment(i));

    ASSERT_TRUE(optimizer_step(one_moment_config(optimizer, 0.0f), 7, 1.0f, memory.tile()).has_value());

    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(memory.master(i), values.master[i]);
      ASSERT_EQ(memory.parameter(i), rounded_to(DType::bf16, values.master[i]));
      ASSERT_NE(memory.moment(i), moments[i]);
    }
  }
}

}  // namespace
}  // namespace penstock::test
