#include "adam_reference.hpp"
#include "cpu_adam/adam_coefficients.hpp"
#include "format_tile.hpp"
#include "kernels/adam_formula.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

namespace penstock::test {

using namespace cpu_adam;
namespace {

constexpr StateFormat formats[] = {StateFormat::fp32,     StateFormat::split,   StateFormat::split_bf16,
                                   StateFormat::split_q8, StateFormat::moments, StateFormat::moments_bf16};
constexpr std::size_t count = 256 + 33;

/// A tile without an epsilon, in any format.
class Tile {
 public:
  Tile(StateFormat format, std::vector<float> masters)
      : masters_(std::move(masters)),
        gradient_(masters_.size()),
        parameter_(masters_.size()),
        state_(round_up(tile_bytes(format, ElementCount(masters_.size())).value(), Alignment(4))),
        format_(format) {
    EXPECT_TRUE(initialize_tile(ConstHostSpan(std::span(masters_)), DType::fp32, tile()));
  }

  /// The masters after one step.
  const std::vector<float>& step(const AdamConfig& config, std::uint64_t number, Isa isa) {
    const auto outcome = adam_step(config, number, 1.0f, tile(), {.isa = isa});
    EXPECT_TRUE(outcome.has_value());
    EXPECT_FALSE(outcome->first_non_finite_block.has_value());
    EXPECT_TRUE(read_states(tile(), StateKind::master, ElementCount(0), masters_));
    return masters_;
  }
  [[nodiscard]] std::vector<float>& gradient() { return gradient_; }
  [[nodiscard]] const std::vector<float>& masters() const { return masters_; }

 private:
  [[nodiscard]] AdamTile tile() {
    return {.state = state_.span().subspan({}, tile_bytes(format_, ElementCount(masters_.size())).value()),
            .gradient = HostSpan(std::span(gradient_)),
            .parameter = HostSpan(std::span(parameter_)),
            .elements = ElementCount(masters_.size()),
            .gradient_dtype = DType::fp32,
            .format = format_};
  }

  std::vector<float> masters_, gradient_;
  std::vector<std::uint16_t> parameter_;
  GuardedBytes state_;
  StateFormat format_;
};

/// Of bf16 parameters, which Tile has.
bool has_narrow_masters(StateFormat format) {
  return format == StateFormat::moments || format == StateFormat::moments_bf16;
}

class EpsilonOfZero : public testing::TestWithParam<StateFormat> {};

// The padding of a shard is such a run of zeros.
TEST_P(EpsilonOfZero, KeepsTheValuesOfElementsWithoutGradients) {
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    TileValues values = random_values(count, 3);
    for (std::size_t i = 0; i < count; i += 2) values.master[i] = 0.0f;
    std::vector<float> stored;
    for (const float master : values.master) stored.push_back(TileKind{GetParam()}.stored(master));
    Tile tile(GetParam(), values.master);
    for (std::uint64_t step = 1; step <= 200; ++step) {
      ASSERT_EQ(tile.step({.epsilon = 0}, step, isa), stored) << to_string(isa) << " " << step;
    }
  }
}

TEST_P(EpsilonOfZero, DecaysElementsWithoutGradients) {
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    Tile tile(GetParam(), std::vector<float>(count, 1.0f));
    float wanted = 1.0f;
    for (std::uint64_t step = 1; step <= 20; ++step) {
      wanted += wanted * -0.01f;
      const auto& masters = tile.step({.learning_rate = 0.1f, .epsilon = 0, .weight_decay = 0.1f}, step, isa);
      if (!has_narrow_masters(GetParam())) {
        ASSERT_EQ(masters, std::vector<float>(count, wanted)) << to_string(isa) << " " << step;
        continue;
      }
      const double mean = std::accumulate(masters.begin(), masters.end(), 0.0) / count;
      const double deviation = 0x1p-8 / 2 * std::sqrt(static_cast<double>(step) / count);
      ASSERT_NEAR(mean, wanted, 5 * deviation) << to_string(isa) << " " << step;
    }
  }
}

// Squares of these gradients are far below, around or above the smallest number of a format, and so are the moments.
// The bound on the change is Adam's own: (1 - β1) / sqrt(1 - β2) = 3.2 learning rates.
TEST_P(EpsilonOfZero, MovesElementsWithTinyGradientsByNoMoreThanOthers) {
  constexpr AdamConfig config{.learning_rate = 1.0f, .epsilon = 0};
  for (int exponent = -149; exponent <= -30; ++exponent) {
    SeededRandom random(4);
    Tile tile(GetParam(), std::vector<float>(count));
    std::vector<float> before(count);
    for (std::uint64_t step = 1; step <= 40; ++step) {
      for (std::size_t i = 0; i < count; ++i) {
        const bool constant = i % 2 == 0;
        tile.gradient()[i] = std::ldexp(constant || random.below(2) ? 1.0f : -1.0f, exponent);
      }
      const auto& masters = tile.step(config, step, best_isa().isa);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_LE(std::abs(masters[i] - before[i]), 4.0f)
            << "2^" << exponent << ", step " << step << ", " << i;
      }
      before = masters;
    }
  }
}

TEST_P(EpsilonOfZero, GivesTheSameBitsOnEveryInstructionSet) {
  constexpr AdamConfig config{.epsilon = 0, .weight_decay = 0.1f};
  std::vector<std::vector<float>> wanted;
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    SeededRandom random(5);
    Tile tile(GetParam(), random_values(count, 5).master);
    for (std::uint64_t step = 1; step <= 30; ++step) {
      for (float& g : tile.gradient()) {
        g = std::ldexp(random.symmetric(), -static_cast<int>(random.below(150)));
      }
      const auto& masters = tile.step(config, step, isa);
      if (isa == Isa::scalar) wanted.push_back(masters);
      ASSERT_EQ(masters, wanted[step - 1]) << to_string(isa) << " " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EpsilonOfZero, testing::ValuesIn(formats),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

TEST(AdamEpsilon, ChangesNoBitOfRootsFrom2ToThePowerOfMinus39) {
  const kernels::AdamCoefficients coefficients = adam_coefficients({.epsilon = 0}, 7, 1.0f).value();
  EXPECT_EQ(coefficients.epsilon, epsilon_min);
  kernels::AdamCoefficients without = coefficients;
  without.epsilon = 0;
  using Lane = kernels::ScalarLane;
  const kernels::AdamOperands<Lane> operands(coefficients), operands_without(without);
  SeededRandom random(6);
  for (int i = 0; i < 100'000; ++i) {
    const float root =
        std::ldexp(1.0f + std::abs(random.symmetric()), static_cast<int>(random.below(100)) - 39);
    const float m = random.symmetric() * root;
    ASSERT_EQ(kernels::adam_ratio<Lane>(operands, m, root),
              kernels::adam_ratio<Lane>(operands_without, m, root))
        << root;
  }
}

TEST(AdamEpsilon, IsAsAccurateAsWithOneInEveryElement) {
  constexpr AdamConfig config{.learning_rate = 3e-4f, .beta2 = 0.95f, .epsilon = 0};
  const TileValues values = random_values(20000, 7);
  TileMemory memory(values.size(), DType::fp32, DType::fp32);
  memory.set(values);
  ASSERT_TRUE(adam_step(config, 9, 1.0f, memory.tile()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    AdamReference reference{.p = values.master[i], .m = values.m[i], .v = values.v[i]};
    reference.step(config, 9, values.gradient[i]);
    ASSERT_LE(ulps(memory.master(i), reference.p, reference.scale_of_terms.p), 6.0) << i;
  }
}

TEST(AdamEpsilon, TakesALargerOneAsItIs) {
  for (const float epsilon : {1e-8f, 1e-15f, 0x1p-63f}) {
    EXPECT_EQ(adam_coefficients({.epsilon = epsilon}, 1, 1.0f)->epsilon, epsilon);
  }
  for (const float epsilon : {0.0f, -0.0f, 1e-45f, 0x1p-65f}) {
    EXPECT_EQ(adam_coefficients({.epsilon = epsilon}, 1, 1.0f)->epsilon, epsilon_min);
  }
}

}  // namespace
}  // namespace penstock::test
