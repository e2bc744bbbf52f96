#include "gpt/counter_random.hpp"
#include "gpt/host_kernels.hpp"
#include "gpt/model_description.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <iterator>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gpt {
namespace {

constexpr ModelConfig small{.layers = 2, .width = 64, .heads = 2, .context = 16, .seed = 3};

std::vector<float> values_of(const ModelDescription& model, ParameterId id) {
  std::vector<float> values(model.parameter(id).count.value());
  model.initial_values(id, 0, values);
  return values;
}

TEST(ModelDescription, ListsUnitsInForwardOrderAndTheTiedEmbeddingAsAUse) {
  const ModelDescription model(small);

  ASSERT_EQ(model.units().size(), 4u);
  EXPECT_EQ(model.units()[0].name, "embed");
  EXPECT_EQ(model.units()[2].name, "block.1");
  EXPECT_EQ(model.units()[3].name, "head");
  ASSERT_EQ(model.units()[3].uses.size(), 1u);
  EXPECT_EQ(model.parameter(model.units()[3].uses[0]).name, "token_embedding");
}

TEST(ModelDescription, CountsTheDemonstrationsParameters) {
  // 4 blocks of 12 d² + 13 d, (256 + 128) d of embeddings, 2 d of the last norm, with d = 768.
  const ModelDescription model{ModelConfig{}};

  EXPECT_EQ(model.element_count().value(), 4u * (12 * 768 * 768 + 13 * 768) + 384 * 768 + 2 * 768);
  EXPECT_EQ(model.scratch_count().value(), 4u * 768 * 768);
}

TEST(ModelDescription, NeedsNoMoreScratchForALongerContext) {
  const auto scratch = [](std::uint32_t context) {
    return ModelDescription({.layers = 1, .width = 64, .heads = 2, .context = context}).scratch_count();
  };

  EXPECT_EQ(scratch(65536), scratch(16));
}

TEST(ModelDescription, CountsAsManyParametersAsEachPresetIsNamedAfter) {
  const std::vector<std::pair<std::string, double>> expected = {
      {"30m", 30e6}, {"124m", 124e6}, {"1b", 1e9}, {"7b", 7e9}};
  ASSERT_EQ(std::size(model_presets), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(model_presets[i].name, expected[i].first);
    EXPECT_TRUE(model_presets[i].model.validate());
    const auto count = static_cast<double>(ModelDescription(model_presets[i].model).element_count().value());
    EXPECT_NEAR(count / expected[i].second, 1, 0.05) << expected[i].first;
  }
}

TEST(ModelDescription, DecaysMatricesAndEmbeddingsOnly) {
  const ModelDescription model(small);
  for (const UnitDescription& unit : model.units()) {
    for (const ParameterDescription& parameter : unit.parameters) {
      const bool matrix = parameter.name.find("weight") != std::string::npos ||
                          parameter.name.find("embedding") != std::string::npos;
      EXPECT_EQ(parameter.weight_decay, matrix) << parameter.name;
    }
  }
}

ModelConfig with_adapters(ModelConfig config) {
  config.lora = LoraConfig{.rank = 4, .alpha = 2};
  return config;
}

TEST(ModelDescription, TrainsTheAdaptersOfTheAttentionAlone) {
  const ModelDescription base(small), model(with_adapters(small));
  std::vector<std::string> trained;
  for (const UnitDescription& unit : model.units()) {
    for (const ParameterDescription& parameter : unit.parameters) {
      if (!parameter.frozen) trained.push_back(parameter.path);
    }
  }

  const std::vector<std::string> wanted = {"block.0.qkv.lora_a",  "block.0.qkv.lora_b", "block.0.proj.lora_a",
                                           "block.0.proj.lora_b", "block.1.qkv.lora_a", "block.1.qkv.lora_b",
                                           "block.1.proj.lora_a", "block.1.proj.lora_b"};
  EXPECT_EQ(trained, wanted);
  EXPECT_EQ(model.trained_count().value(), 2u * 4 * (64 + 192 + 64 + 64));
  EXPECT_EQ(model.element_count(), base.element_count() + model.trained_count());
  EXPECT_EQ(base.trained_count(), base.element_count());
}

TEST(ModelDescription, NumbersEachParameterOnce) {
  const ModelDescription model(with_adapters(small));
  std::set<std::uint64_t> numbers;
  std::size_t parameters = 0;
  for (const UnitDescription& unit : model.units()) {
    for (const ParameterDescription& parameter : unit.parameters) {
      numbers.insert(parameter.number);
      ++parameters;
    }
  }

  EXPECT_EQ(numbers.size(), parameters);
  EXPECT_EQ(*numbers.rbegin(), parameters - 1);
}

TEST(ModelDescription, DoesNotVisitAFrozenEmbeddingInTheBackward) {
  EXPECT_EQ(ModelDescription(small).backward_visits(false).back().unit, 0u);
  EXPECT_EQ(ModelDescription(with_adapters(small)).backward_visits(false).back().unit, 1u);
}

TEST(ModelDescription, RefusesAdaptersThatAreNone) {
  const auto refused = [](LoraConfig lora, const char* words) {
    ModelConfig config = small;
    config.lora = lora;
    const auto valid = config.validate();
    ASSERT_FALSE(valid);
    EXPECT_NE(valid.error().message().find(words), std::string::npos) << valid.error().message();
  };
  refused({.rank = 0, .alpha = 1}, "--lora");
  refused({.rank = 65, .alpha = 1}, "1 to 64, the width");
  refused({.rank = 4, .alpha = 0}, "--lora-alpha");
  refused({.rank = 4, .alpha = NAN}, "--lora-alpha");
}

constexpr ModelConfig cut_rows{.layers = 2,
                               .width = 128,
                               .heads = 2,
                               .context = 16,
                               .unit_elements_max = penstock::ElementCount(64 * 513)};

TEST(ModelDescription, CutsABlockIntoUnitsWithinTheLimit) {
  const ModelDescription model(cut_rows);
  ModelConfig whole = cut_rows;
  whole.unit_elements_max = {};

  EXPECT_EQ(model.element_count(), ModelDescription(whole).element_count());
  EXPECT_EQ(model.units()[1].name, "block.0.part.0");
  EXPECT_EQ(model.units()[1].parameters[2].name, "qkv.weight[0:192]");
  EXPECT_EQ(model.units()[2].parameters[1].name, "qkv.bias[192:384]");
  for (const UnitDescription& unit : model.units().subspan(1))
    EXPECT_LE(unit.element_count(), cut_rows.unit_elements_max) << unit.name;
}

TEST(ModelDescription, RefusesALimitBelowTheSmallestRowBlock) {
  ModelConfig config = cut_rows;
  config.unit_elements_max -= penstock::ElementCount(1);

  const auto refused = config.validate();

  ASSERT_FALSE(refused);
  for (const char* const part : {"down.weight", "64 rows", "penstock.unit_elements_max"})
    EXPECT_NE(refused.error().message().find(part), std::string::npos) << refused.error().message();
}

TEST(ModelDescription, VisitsTheUnitsOfABlockBackwardsOnceEachOfThemHasComputedItsActivationsAgain) {
  const auto visits_of = [](bool checkpoint) {
    std::string visits;
    const ModelDescription model(cut_rows);
    for (const BackwardVisit& visit : model.backward_visits(checkpoint)) {
      if (visit.recompute) visits.append(" +").append(std::to_string(visit.unit));
      if (visit.backward) visits.append(" -").append(std::to_string(visit.unit));
    }
    return visits;
  };
  // Units 0: embed; 1 to 8, 9 to 16: blocks, whose last two units are down; 17: head.
  EXPECT_EQ(visits_of(false), " -17 -16 -15 -14 -13 -12 -11 -10 -9 -8 -7 -6 -5 -4 -3 -2 -1 -0");
  EXPECT_EQ(visits_of(true),
            " -17 +9 +10 +11 +12 +13 +14 -16 -15 -14 -13 -12 -11 -10 -9"
            " +1 +2 +3 +4 +5 +6 -8 -7 -6 -5 -4 -3 -2 -1 -0");
}

TEST(InitialValues, AreTheSameForRowBlocksAsForTheWholeParameter) {
  ModelConfig config = cut_rows;
  config.unit_elements_max = {};
  const ModelDescription whole(config), cut(cut_rows);
  std::vector<std::vector<float>> wanted, got(36);
  for (std::size_t unit = 0; unit < whole.units().size(); ++unit) {
    for (std::size_t index = 0; index < whole.units()[unit].parameters.size(); ++index)
      wanted.push_back(values_of(whole, {unit, index}));
  }
  for (std::size_t unit = 0; unit < cut.units().size(); ++unit) {
    for (std::size_t index = 0; index < cut.units()[unit].parameters.size(); ++index) {
      const std::vector<float> block = values_of(cut, {unit, index});
      std::vector<float>& all = got.at(cut.parameter({unit, index}).number);
      all.insert(all.end(), block.begin(), block.end());
    }
  }
  got.resize(wanted.size());
  EXPECT_EQ(got, wanted);
}

TEST(InitialValues, AreOfTheBaseThoseWithoutAdapters) {
  const ModelDescription base(small), model(with_adapters(small));
  EXPECT_EQ(values_of(model, {0, 0}), values_of(base, {0, 0}));
  for (const auto& [of_base, of_model] :
       {std::pair(ParameterId{2, 4}, ParameterId{2, 6}), {{2, 10}, {2, 14}}, {{3, 0}, {3, 0}}}) {
    EXPECT_EQ(model.parameter(of_model).path, base.parameter(of_base).path);
    EXPECT_EQ(values_of(model, of_model), values_of(base, of_base));
  }
  EXPECT_NE(values_of(model, {1, 4}), values_of(model, {2, 4}));
  EXPECT_EQ(values_of(model, {1, 5}), std::vector<float>(192 * 4));
}

TEST(InitialValues, AreTheSameForAnySliceOfAParameter) {
  const ModelDescription model(small);
  const ParameterId id{.unit = 1, .index = 2};
  const std::vector<float> whole = values_of(model, id);

  std::vector<float> slice(100);
  model.initial_values(id, 37, slice);

  EXPECT_EQ(slice, std::vector<float>(whole.begin() + 37, whole.begin() + 137));
  EXPECT_EQ(model.initial_value(id, 37), slice[0]);
}

TEST(InitialValues, HaveTheDescribedMeanAndDeviation) {
  const ModelDescription model(small);
  for (const ParameterId id : {ParameterId{0, 0}, ParameterId{1, 0}, ParameterId{1, 3}, ParameterId{2, 10}}) {
    const std::vector<float> values = values_of(model, id);
    const InitialRule rule = model.parameter(id).initial;
    double sum = 0, squares = 0;
    for (const double x : values) sum += x - rule.constant, squares += std::pow(x - rule.constant, 2);

    const auto n = static_cast<double>(values.size());
    EXPECT_NEAR(sum / n, 0, 4 * rule.deviation / std::sqrt(n)) << model.parameter(id).name;
    EXPECT_NEAR(std::sqrt(squares / n), rule.deviation, 0.03 * rule.deviation) << model.parameter(id).name;
  }
  EXPECT_FLOAT_EQ(model.parameter({2, 10}).initial.deviation, 0.02f / 2.0f);  // 2 layers: 4 additions
}

TEST(InitialValues, DifferBetweenParametersAndSeeds) {
  ModelConfig other_seed = small;
  other_seed.seed = 4;

  const std::vector<float> values = values_of(ModelDescription(small), {1, 2});

  EXPECT_NE(values, values_of(ModelDescription(small), {2, 2}));
  EXPECT_NE(values, values_of(ModelDescription(other_seed), {1, 2}));
}

TEST(HostKernels, ExponentialIsWithinTwoUnitsInTheLastPlace) {
  std::vector<float> x, y;
  for (float v = -87.0f; v <= 88.0f; v += 0.00137f) x.push_back(v);
  y.resize(x.size());

  host::exponentials(x.data(), y.data(), x.size());

  for (std::size_t i = 0; i < x.size(); ++i) {
    const double wanted = std::exp(double{x[i]});
    ASSERT_LE(std::abs(y[i] - wanted), 2 * std::ldexp(1.0, std::ilogb(wanted) - 23)) << "exp(" << x[i] << ")";
  }
}

TEST(HostKernels, RoundingToBf16KeepsNaNsAndOverflowsToInfinity) {
  // The first NaN would round up through the sign bit, the second's payload is all in the bits cut off.
  const float x[] = {std::bit_cast<float>(0x7fffffffu), std::bit_cast<float>(0x7f800001u), INFINITY,
                     -INFINITY, 3.4e38f};
  std::uint16_t y[5];

  host::store_bf16(x, y, 5, GradientWrite::overwrite);

  EXPECT_GT(y[0], 0x7f80);
  EXPECT_LT(y[0], 0x8000);
  EXPECT_GT(y[1], 0x7f80);
  EXPECT_EQ(y[2], 0x7f80);
  EXPECT_EQ(y[3], 0xff80);
  EXPECT_EQ(y[4], 0x7f80);
}

TEST(HostKernels, WidenEveryFp16AndRoundBackToIt) {
  std::vector<std::uint16_t> all(1u << 16), back(all.size());
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  std::vector<float> wide(all.size());

  host::widen_fp16(all.data(), wide.data(), all.size());
  host::store_fp16(wide.data(), back.data(), all.size(), GradientWrite::overwrite);

  for (std::size_t i = 0; i < all.size(); ++i) {
    const int exponent = static_cast<int>(i >> 10 & 31), mantissa = static_cast<int>(i & 1023);
    const double sign = i < 0x8000 ? 1 : -1;
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(wide[i]), mantissa != 0) << i;
      ASSERT_EQ(back[i] & 0x7fff, mantissa == 0 ? 0x7c00 : 0x7e00) << i;
      continue;
    }
    const double wanted =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(wide[i], sign * wanted) << i;
    ASSERT_EQ(back[i], all[i]) << i;
  }
}

TEST(HostKernels, RoundToTheNearestFp16WithTiesToEven) {
  // Each with its fp16: ties, just beside them, the largest finite and what overflows, subnormal numbers.
  const std::pair<float, std::uint16_t> cases[] = {
      {0x1.002p0f, 0x3c00}, {0x1.006p0f, 0x3c02}, {0x1.00200001p0f, 0x3c00}, {0x1.002002p0f, 0x3c01},
      {65519.0f, 0x7bff},   {65520.0f, 0x7c00},   {-65520.0f, 0xfc00},       {0x1p-25f, 0x0000},
      {0x1.8p-24f, 0x0002}, {0x1.000002p-25f, 1}, {0x1.ff8p-15f, 0x03ff},    {0x1.ffcp-15f, 0x0400},
      {0x1p-149f, 0x0000},  {-0.0f, 0x8000},      {3e38f, 0x7c00},           {-INFINITY, 0xfc00}};
  for (const auto& [value, wanted] : cases) {
    std::uint16_t stored = 0;
    host::store_fp16(&value, &stored, 1, GradientWrite::overwrite);
    EXPECT_EQ(stored, wanted) << value;
  }
  const float one = 1, below_half = 0x1p-11f;
  std::uint16_t sum = 0x3c01;
  host::store_fp16(&one, &sum, 1, GradientWrite::accumulate);
  EXPECT_EQ(sum, 0x4000) << "1 + 2^-10 + 1 is a tie";
  host::store_fp16(&below_half, &sum, 1, GradientWrite::accumulate);
  EXPECT_EQ(sum, 0x4000);
}

TEST(TrainingConfig, RaisesTheLearningRateLinearlyThenLowersItToZeroAtTheEnd) {
  const TrainingConfig training{.steps = 10, .warmup_steps = 4};
  penstock::zero::Config config;
  config.optimizer.learning_rate = 4;
  const std::vector<float> wanted{1, 2, 3, 4, 4, 10.0f / 3, 8.0f / 3, 2, 4.0f / 3, 2.0f / 3};
  for (std::uint32_t step = 0; step < training.steps; ++step) {
    EXPECT_FLOAT_EQ(static_cast<float>(*training.learning_rate(config, step)), wanted[step]) << step;
  }
}

TEST(TrainingConfig, LeavesTheLearningRateToAScheduler) {
  penstock::zero::Config config;
  config.scheduler = penstock::zero::WarmupLR();
  EXPECT_EQ(TrainingConfig().learning_rate(config, 3), std::nullopt);
}

}  // namespace
}  // namespace gpt
