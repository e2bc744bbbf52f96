#include "format_tile.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace penstock::test {

using namespace cpu_adam;
namespace {

constexpr AdamConfig adamw{.learning_rate = 1e-2f, .weight_decay = 0.1f};
constexpr AdamConfig l2{.learning_rate = 1e-2f, .weight_decay = 0.1f, .decay_mode = AdamDecay::l2};

/// The same configuration with a learning rate of 0: masters stay what they are, moments change.
AdamConfig resting(AdamConfig config) {
  config.learning_rate = 0.0f;
  return config;
}

/// A bf16 number of 2^-21 to 2^21, plus half the distance to the next.
float random_tie(SeededRandom& random) {
  const std::uint64_t sign = random.below(2), upper = 0x3500 + random.below(0x1500);
  return std::bit_cast<float>(static_cast<std::uint32_t>(sign << 31 | upper << 16 | 0x8000u));
}

/// The values of fp16 numbers around 1; one in eight is a tie.
float random_fp16(SeededRandom& random) {
  return std::round(0x1p12f * random.symmetric()) * 0x1p-11f;
}

template <class Next>
std::vector<float> values(std::size_t count, const Next& next) {
  std::vector<float> all(count);
  std::generate(all.begin(), all.end(), next);
  return all;
}

/// The same masters in formats fp32 and split, updated by the same steps.
class Twins {
 public:
  Twins(const std::vector<float>& masters, DType gradient_dtype)
      : masters_(masters),
        reference_(masters.size(), gradient_dtype, DType::bf16),
        split_(StateFormat::split, masters.size(), gradient_dtype) {
    EXPECT_TRUE(initialize_tile(ConstHostSpan(std::span(masters_)), DType::fp32, reference_.tile()));
    split_.initialize(masters);
  }

  void set_gradient(const std::vector<float>& gradient) {
    reference_.set_gradient(gradient);
    split_.set_gradient(gradient);
  }
  void step(const AdamConfig& config, std::uint64_t number, Isa isa = best_isa().isa) {
    const AdamSegment all{ElementCount(masters_.size()), config};
    step(std::span(&all, 1), number, isa);
  }
  void step(std::span<const AdamSegment> segments, std::uint64_t number, Isa isa = best_isa().isa) {
    for (const AdamTile& tile : {reference_.tile(), split_.tile()}) {
      const auto outcome = adam_step_in_segments(segments, number, 0.5f, tile, {.isa = isa});
      ASSERT_TRUE(outcome.has_value());
      EXPECT_FALSE(outcome->first_non_finite_block.has_value());
    }
  }

  [[nodiscard]] bool parameters_are_equal() const {
    const HostSpan mine = split_.tile().parameter;
    return std::memcmp(mine.data(), reference_.tile().parameter.data(), mine.size().value()) == 0;
  }
  [[nodiscard]] testing::AssertionResult are_equal() const {
    std::vector<float> read(masters_.size());
    if (!read_states(split_.tile(), StateKind::master, ElementCount(0), read))
      return testing::AssertionFailure() << "unread";
    for (std::size_t i = 0; i < read.size(); ++i) {
      const auto differs = [&](const char* what, double got, double wanted) {
        return testing::AssertionFailure() << what << " " << i << ": " << got << ", wanted " << wanted;
      };
      if (read[i] != reference_.master(i)) return differs("master", read[i], reference_.master(i));
      if (split_.master(i) != read[i]) return differs("documented master", split_.master(i), read[i]);
      if (split_.m(i) != reference_.m(i)) return differs("m", split_.m(i), reference_.m(i));
      if (split_.v(i) != reference_.v(i)) return differs("v", split_.v(i), reference_.v(i));
      if (split_.parameter(i) != reference_.parameter(i))
        return differs("parameter", split_.parameter(i), reference_.parameter(i));
      const bool signed_v = split_.stored_v_is_negative(i);
      if (signed_v != (std::bit_cast<std::uint32_t>(read[i]) % 0x20000 == 0x8000))
        return differs("sign of v", signed_v, read[i]);
    }
    return testing::AssertionSuccess();
  }
  [[nodiscard]] std::size_t ties() const {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < masters_.size(); ++i) {
      sum += std::bit_cast<std::uint32_t>(reference_.master(i)) % 0x10000 == 0x8000;
    }
    return sum;
  }

 private:
  std::vector<float> masters_;
  TileMemory reference_;
  FormatTile split_;
};

TEST(SplitExactness, EqualsFp32AfterEveryStepIfEveryMasterIsATie) {
  for (const std::size_t count : std::initializer_list<std::size_t>{1, 31, 33, 64, 129, 16384 + 77}) {
    SeededRandom random(count);
    const auto masters = values(count, [&] { return random_tie(random); });
    const auto gradient = values(count, [&] { return random.symmetric(); });
    for (const AdamConfig& moving : {adamw, l2}) {
      for (const Isa isa : isas) {
        if (!is_runnable(isa)) continue;
        SCOPED_TRACE(std::string(to_string(isa)) + ", " + std::to_string(count));
        Twins twins(masters, DType::bf16);
        twins.set_gradient(gradient);
        std::uint64_t number = 0;
        for (const AdamConfig& config : {resting(moving), resting(moving), moving, resting(moving), moving}) {
          ASSERT_NO_FATAL_FAILURE(twins.step(config, ++number, isa));
          ASSERT_TRUE(twins.are_equal()) << number;
        }
      }
    }
  }
}

// Multiplying a master by 3/4 adds at most two bits to its mantissa, so that new ties appear.
TEST(SplitExactness, EqualsFp32WhileTiesComeAndGo) {
  SeededRandom random(2);
  const auto masters = values(1000, [&] { return std::round(0x1p8f * random.symmetric()); });
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    Twins twins(masters, DType::fp32);
    std::vector<std::size_t> ties;
    for (std::uint64_t number = 1; number <= 6; ++number) {
      ASSERT_NO_FATAL_FAILURE(twins.step({.learning_rate = 1.0f, .weight_decay = 0.25f}, number, isa));
      ASSERT_TRUE(twins.are_equal()) << to_string(isa) << " " << number;
      ties.push_back(twins.ties());
    }
    EXPECT_GT(*std::max_element(ties.begin(), ties.end()), 100u);
    EXPECT_LT(ties.back(), 50u);
  }
}

// Masters from fp16 and random ones, some of which have no gradient. New ties are rare, but there are some.
TEST(SplitExactness, EqualsFp32InLongRuns) {
  constexpr std::size_t count = 600;
  SeededRandom random(3);
  Twins twins(values(count, [&] { return random.below(2) ? random_fp16(random) : random.symmetric(); }),
              DType::bf16);
  const std::size_t first_ties = twins.ties();
  std::size_t later_ties = 0;
  std::vector<float> gradient(count);
  for (std::uint64_t number = 1; number <= 2000; ++number) {
    for (std::size_t i = 0; i < count; ++i) gradient[i] = i % 8 == 0 ? 0.0f : random.symmetric();
    twins.set_gradient(gradient);
    ASSERT_NO_FATAL_FAILURE(twins.step({.learning_rate = 1e-3f}, number));
    ASSERT_TRUE(twins.parameters_are_equal()) << number;
    later_ties += number > 1 ? twins.ties() : 0;
  }
  EXPECT_TRUE(twins.are_equal());
  EXPECT_GT(first_ties, count / 32);
  EXPECT_GT(later_ties, 0u);
}

// Segments end within a register and at a block's end; one has a single element.
TEST(SplitExactness, EqualsFp32InSegments) {
  constexpr std::size_t count = 16384 + 200;
  SeededRandom random(4);
  const auto masters = values(count, [&] { return random_tie(random); });
  const auto gradient = values(count, [&] { return random.symmetric(); });
  const std::vector<AdamSegment> segments = {
      {ElementCount(77), resting(adamw)}, {ElementCount(78), adamw},
      {ElementCount(150), resting(l2)},   {ElementCount(301), l2},
      {ElementCount(16384), adamw},       {ElementCount(count), resting(l2)}};
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    Twins twins(masters, DType::fp32);
    twins.set_gradient(gradient);
    for (std::uint64_t number = 1; number <= 3; ++number) {
      ASSERT_NO_FATAL_FAILURE(twins.step(segments, number, isa));
      ASSERT_TRUE(twins.are_equal()) << to_string(isa) << " " << number;
    }
  }
}

std::uint32_t bits(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

constexpr StateFormat split_formats[] = {StateFormat::split, StateFormat::split_bf16, StateFormat::split_q8};

/// A step that moves no master; step 0 does nothing.
void rest(const FormatTile& tile, std::uint64_t step, Isa isa) {
  if (step == 0) return;
  ASSERT_TRUE(adam_step({.learning_rate = 0}, step, 1.0f, tile.tile(), {.isa = isa}));
}

class SplitRounding : public testing::TestWithParam<StateFormat> {
 protected:
  [[nodiscard]] static bool rounds_to_even() { return GetParam() != StateFormat::split_q8; }
};

TEST_P(SplitRounding, RoundsTheParameterToNearestAndKeepsTheMaster) {
  const float infinity = std::numeric_limits<float>::infinity();
  struct Case {
    float master, parameter;
    bool even_tie;  ///< a tie whose nearest even parameter is nearer to zero
  };
  const Case cases[] = {
      {1.0f, 1.0f, false},           {0x1.01p0f, 1.0f, true},          {-0x1.01p0f, -1.0f, true},
      {0x1.03p0f, 0x1.04p0f, false}, {0x1.00fffep0f, 1.0f, false},     {0x1.010002p0f, 0x1.02p0f, false},
      {-0.0f, -0.0f, false},         {3.4e38f, infinity, false},       {-0x1.ffp127f, -infinity, false},
      {infinity, infinity, false},   {0x1.fdp127f, 0x1.fcp127f, true}, {0x1p-134f, 0.0f, true}};
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    for (const Case& one : cases) {
      const float parameter = one.even_tie && !rounds_to_even()
                                  ? std::bit_cast<float>(bits(one.parameter) + 0x10000)
                                  : one.parameter;
      FormatTile tile(GetParam(), 100);
      tile.initialize(std::vector<float>(100, one.master));
      for (const std::uint64_t step : {0u, 1u}) {
        ASSERT_NO_FATAL_FAILURE(rest(tile, step, isa));
        for (const std::size_t i : std::initializer_list<std::size_t>{0, 63, 64, 99}) {
          EXPECT_EQ(bits(tile.parameter(i)), bits(parameter)) << one.master << " " << step;
          EXPECT_EQ(bits(tile.master(i)), bits(one.master)) << one.master << " " << step;
        }
      }
    }
  }
}

// NaNs of every kind, among others 0x7fffffff, which CUDA produces.
TEST_P(SplitRounding, KeepsNaNsInParametersAndMasters) {
  const std::uint32_t nans[] = {0x7fffffff, 0xffffffff, 0x7f800001, 0xff800001, 0x7f80ffff, 0x7f808000,
                                0x7fc00000, 0xffc00000, 0x7fff8000, 0x7ffe8000, 0xffff7fff, 0x7fff8001};
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    for (const std::uint32_t nan : nans) {
      std::vector<float> masters(99, 0x1.01p0f);
      for (const std::size_t i : {1u, 40u, 97u}) masters[i] = std::bit_cast<float>(nan);
      FormatTile tile(GetParam(), masters.size());
      tile.initialize(masters);
      for (std::uint64_t step = 0; step <= 3; ++step) {
        ASSERT_NO_FATAL_FAILURE(rest(tile, step, isa));
        std::vector<float> read(masters.size());
        ASSERT_TRUE(read_states(tile.tile(), StateKind::master, ElementCount(0), read));
        for (std::size_t i = 0; i < masters.size(); ++i) {
          ASSERT_EQ(std::isnan(tile.parameter(i)), std::isnan(masters[i])) << std::hex << nan << " " << step;
          ASSERT_EQ(std::isnan(read[i]), std::isnan(masters[i])) << std::hex << nan << " " << step;
          ASSERT_TRUE(read[i] == masters[i] || std::isnan(masters[i])) << std::hex << nan << " " << step;
        }
      }
    }
  }
}

// The smallest ties are rounded to zero; read without the sign of v their halves look like NaNs.
TEST_P(SplitRounding, KeepsTheSmallestTiesBesideNaNs) {
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    std::vector<float> masters(99, 1.0f), gradient(99, 0.0f);
    masters[3] = std::bit_cast<float>(0x00008000u);
    masters[98] = std::bit_cast<float>(0x80008000u);
    gradient[50] = std::numeric_limits<float>::quiet_NaN();
    FormatTile tile(GetParam(), masters.size());
    tile.initialize(masters);
    tile.set_gradient(gradient);
    ASSERT_NO_FATAL_FAILURE(rest(tile, 1, isa));
    for (const std::size_t i : {3u, 98u}) EXPECT_EQ(bits(tile.master(i)), bits(masters[i])) << to_string(isa);
    EXPECT_TRUE(std::isnan(tile.master(50))) << to_string(isa);
  }
}

TEST_P(SplitRounding, KeepsNaNsThatGradientsMake) {
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    for (const std::uint32_t nan : {0x7fffffffu, 0xffffffffu, 0x7f800001u}) {
      FormatTile tile(GetParam(), 99);
      tile.initialize(std::vector<float>(99, 0x1.01p0f));
      std::vector<float> gradient(99);
      for (const std::size_t i : {1u, 40u, 97u}) gradient[i] = std::bit_cast<float>(nan);
      tile.set_gradient(gradient);
      for (std::uint64_t step = 1; step <= 3; ++step) {
        ASSERT_TRUE(adam_step({.learning_rate = 1e-3f}, step, 1.0f, tile.tile(), {.isa = isa}));
        for (const std::size_t i : {1u, 40u, 97u}) {
          ASSERT_TRUE(std::isnan(tile.parameter(i)))
              << to_string(isa) << std::hex << " " << nan << " " << step;
          ASSERT_TRUE(std::isnan(tile.master(i))) << to_string(isa) << std::hex << " " << nan << " " << step;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, SplitRounding, testing::ValuesIn(split_formats),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

// The moments of split_bf16, and the random numbers that round them, do not depend on the masters; nor do their
// magnitudes depend on ties.
TEST(SplitBf16, UpdatesMomentsAsIfVHadNoSign) {
  constexpr std::size_t count = 16384 + 77;
  SeededRandom random(5);
  const auto ties = values(count, [&] { return random_tie(random); });
  const auto gradient = values(count, [&] { return random.symmetric(); });
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    FormatTile tile(StateFormat::split_bf16, count), other(StateFormat::split_bf16, count);
    tile.initialize(ties);
    other.initialize(std::vector<float>(count, 1.0f));
    for (FormatTile* some : {&tile, &other}) some->set_gradient(gradient);
    for (std::uint64_t step = 1; step <= 3; ++step) {
      for (FormatTile* some : {&tile, &other}) {
        const auto outcome = adam_step(resting(adamw), step, 0.5f, some->tile(), {.isa = isa});
        ASSERT_TRUE(outcome.has_value());
        ASSERT_FALSE(outcome->first_non_finite_block.has_value());
      }
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(tile.m(i), other.m(i)) << to_string(isa) << " " << i;
        ASSERT_EQ(tile.v(i), other.v(i)) << to_string(isa) << " " << i;
        ASSERT_EQ(tile.master(i), ties[i]) << to_string(isa) << " " << i;
        ASSERT_EQ(tile.parameter(i), rounded_to(DType::bf16, ties[i])) << to_string(isa) << " " << i;
      }
    }
    // Once a master has moved, no sign remains.
    ASSERT_TRUE(adam_step(adamw, 4, 0.5f, tile.tile(), {.isa = isa}));
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(tile.stored_v_is_negative(i), bits(tile.master(i)) % 0x20000 == 0x8000) << to_string(isa);
    }
  }
}

}  // namespace
}  // namespace penstock::test
