// 16-bit parameters that are the masters: how a step rounds them.

#include "format_tile.hpp"

#include <gtest/gtest.h>
#include <bit>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace penstock::test {

using namespace cpu_adam;
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

class NarrowMasters : public testing::TestWithParam<TileKind> {
 protected:
  [[nodiscard]] static DType dtype() { return GetParam().parameter; }
  /// All numbers of the dtype, infinities and NaNs included.
  static std::vector<float> all_patterns() {
    std::vector<float> patterns;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto pattern = static_cast<std::uint16_t>(bits);
      patterns.push_back(get(dtype(), reinterpret_cast<const std::byte*>(&pattern)));
    }
    return patterns;
  }
};
INSTANTIATE_TEST_SUITE_P(Every, NarrowMasters, testing::ValuesIn(narrow_kinds),
                         [](const auto& kind) { return kind.param.name(); });

/// What a step makes of the masters before it rounds them: those of a tile with fp32 masters. The moments are those of
/// the first step in every format, before they are rounded.
std::vector<float> unrounded(const std::vector<float>& masters, const std::vector<float>& gradient,
                             const AdamConfig& config) {
  FormatTile exact(StateFormat::moments, masters.size());
  exact.initialize(masters);
  exact.set_gradient(gradient);
  EXPECT_TRUE(adam_step(config, 1, 1.0f, exact.tile()).has_value());
  std::vector<float> results(masters.size());
  for (std::size_t i = 0; i < results.size(); ++i) results[i] = exact.master(i);
  return results;
}

/// Masters of all magnitudes that a model has, subnormal fp16 numbers among them.
std::vector<float> masters_of(DType dtype, std::size_t count) {
  SeededRandom random(4);
  std::vector<float> masters;
  for (std::size_t i = 0; i < count; ++i) {
    masters.push_back(
        rounded_to(dtype, random.symmetric() * std::ldexp(1.0f, -static_cast<int>(random.below(24)))));
  }
  return masters;
}

TEST_P(NarrowMasters, AreRoundedToOneOfTheTwoNeighboursWithoutBias) {
  constexpr std::size_t count = 200'000;
  const std::vector<float> masters = masters_of(dtype(), count);
  const TileValues values = random_values(count, 5);
  const AdamConfig config{.learning_rate = 1e-3f, .weight_decay = 0.1f};
  const std::vector<float> exact = unrounded(masters, values.gradient, config);
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    FormatTile tile(GetParam(), count);
    tile.initialize(masters);
    tile.set_gradient(values.gradient);

    const auto outcome = adam_step(config, 1, 1.0f, tile.tile(), {.isa = isa});

    ASSERT_TRUE(outcome.has_value());
    EXPECT_FALSE(outcome->first_non_finite_block.has_value());
    double bias = 0, square = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double off = (double{tile.master(i)} - exact[i]) / spacing_of(dtype(), exact[i]);
      ASSERT_LT(std::abs(off), 1.0) << to_string(isa) << " " << i << ": " << exact[i];
      bias += exact[i] < 0 ? -off : off;
      square += off * off;
    }
    // Each is uniform in variance: 1/6 at most; five standard deviations of the mean.
    EXPECT_LT(std::abs(bias / count), 5 * std::sqrt(1.0 / 6 / count)) << to_string(isa);
    EXPECT_GT(square / count, 0.12) << to_string(isa) << ": rounded to nearest it is 1/12";
  }
}

// The probability of each neighbour, not their mean alone: masters at the same part of the distance.
TEST_P(NarrowMasters, AreRoundedUpAsOftenAsTheyAreFarFromTheLowerNeighbour) {
  constexpr std::size_t count = 100'000;
  const float smallest = dtype() == DType::fp16 ? 0x1p-20f : 0x1p-126f;  // of fp16 a subnormal number
  for (const float master : {1.0f, 0x1.8p-9f, smallest}) {
    for (const double part : {1.0 / 64, 0.25, 0.5, 0.9}) {
      const double distance = spacing_of(dtype(), master);
      const auto rate = static_cast<float>(distance * part);
      const AdamConfig config{.learning_rate = rate, .epsilon = 0};
      const std::vector<float> masters(count, master), gradient(count, -1.0f);  // the first step is the rate
      const double above = (double{unrounded({master}, {-1.0f}, config)[0]} - master) / distance;
      FormatTile tile(GetParam(), count);
      tile.initialize(masters);
      tile.set_gradient(gradient);

      ASSERT_TRUE(adam_step(config, 1, 1.0f, tile.tile()).has_value());

      std::size_t up = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const double moved = (double{tile.master(i)} - master) / distance;
        ASSERT_TRUE(moved == 0 || moved == 1) << moved;
        up += moved == 1 ? 1 : 0;
      }
      EXPECT_NEAR(static_cast<double>(up) / count, above, 5 * std::sqrt(above * (1 - above) / count))
          << master << " + " << part;
    }
  }
}

// In DeepSpeed, which rounds to nearest, such a weight never moves.
TEST_P(NarrowMasters, FollowUpdatesSmallerThanHalfTheDistance) {
  constexpr std::size_t count = 4096;
  constexpr std::uint64_t steps = 500;
  constexpr float rate = 1e-4f;
  FormatTile tile(GetParam(), count);
  tile.initialize(std::vector<float>(count, 1.0f));
  tile.set_gradient(std::vector<float>(count, -1.0f));
  for (std::uint64_t step = 1; step <= steps; ++step) {
    ASSERT_TRUE(adam_step({.learning_rate = rate}, step, 1.0f, tile.tile()).has_value());
  }
  ASSERT_EQ(rounded_to(dtype(), 1.0 + rate), 1.0f);
  double travel = 0;
  for (std::size_t i = 0; i < count; ++i) travel += tile.master(i) - 1.0;
  const double distance = spacing_of(dtype(), 1.0), part = rate / distance;
  const double deviation = distance * std::sqrt(part * (1 - part) * steps / count);
  EXPECT_NEAR(travel / count, rate * steps, 5 * deviation + 1e-4 * rate * steps);
}

TEST_P(NarrowMasters, KeepEveryPatternThatAStepDoesNotChange) {
  const std::vector<float> patterns = all_patterns();
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    for (const std::uint64_t step : {1u, 2u, 3u}) {
      FormatTile tile(GetParam(), patterns.size());
      tile.initialize(patterns);
      tile.set_gradient(std::vector<float>(patterns.size(), 1.0f));

      ASSERT_TRUE(adam_step({.learning_rate = 0}, step, 1.0f, tile.tile(), {.isa = isa}).has_value());

      for (std::size_t i = 0; i < patterns.size(); ++i) {
        const float kept = tile.master(i);
        ASSERT_TRUE(kept == patterns[i] || (std::isnan(kept) && std::isnan(patterns[i])))
            << to_string(isa) << " " << i << ": " << kept;
      }
    }
  }
}

TEST_P(NarrowMasters, StayNaNsWhateverThePayload) {
  constexpr std::size_t count = 77;
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    for (const std::uint32_t nan : {0x7fffffffu, 0xffffffffu, 0x7fc00000u, 0xffc00001u, 0x7fbfffffu}) {
      for (std::uint64_t step = 1; step <= 8; ++step) {
        FormatTile tile(GetParam(), count);
        tile.initialize(std::vector<float>(count, 1.0f));
        tile.set_gradient(std::vector<float>(count, std::bit_cast<float>(nan)));

        const auto outcome = adam_step({}, step, 1.0f, tile.tile(), {.isa = isa});

        ASSERT_TRUE(outcome.has_value());
        EXPECT_EQ(outcome->first_non_finite_block, 0u);
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_TRUE(std::isnan(tile.master(i))) << to_string(isa) << " " << std::hex << nan << " " << i;
        }
      }
    }
  }
}

// Between the largest number and the next power of two a master is rounded to infinity as often as it is near it.
TEST_P(NarrowMasters, AreReportedExactlyWhereOneBecomesInfinite) {
  constexpr std::size_t blocks = 12, length = 16384, count = blocks * length;
  const float largest = all_patterns()[dtype() == DType::fp16 ? 0x7bff : 0x7f7f];
  const auto distance = static_cast<float>(spacing_of(dtype(), largest));
  std::size_t finite = 0, infinite = 0;
  for (const float part : {1e-6f, 0.01f, 0.5f, 1.0f}) {
    for (const Isa isa : isas) {
      if (!is_runnable(isa)) continue;
      std::vector<float> masters(count, 1.0f);
      for (std::size_t block = 0; block < blocks; ++block) {
        for (std::size_t i = 0; i < 5; ++i)
          masters[block * length + 3001 * i] = block % 2 == 0 ? largest : -largest;
      }
      std::vector<float> gradient(count, 0.0f);
      for (std::size_t i = 0; i < count; ++i)
        gradient[i] = masters[i] == 1.0f ? 0.0f : -std::copysign(1.0f, masters[i]);
      FormatTile tile(GetParam(), count);
      tile.initialize(masters);
      tile.set_gradient(gradient);

      const auto outcome =
          adam_step({.learning_rate = part * distance, .epsilon = 0}, 1, 1.0f, tile.tile(), {.isa = isa});

      ASSERT_TRUE(outcome.has_value());
      std::optional<std::size_t> first;
      for (std::size_t i = 0; i < count; ++i) {
        if (masters[i] == 1.0f) continue;
        const float now = tile.master(i);
        ASSERT_TRUE(now == masters[i] || now == std::copysign(infinity, masters[i])) << now;
        ++(std::isinf(now) ? infinite : finite);
        if (std::isinf(now) && !first) first = i / length;
      }
      EXPECT_EQ(outcome->first_non_finite_block, first) << to_string(isa) << " " << part;
    }
  }
  EXPECT_GT(finite, 0u);
  EXPECT_GT(infinite, 0u);
}

TEST_P(NarrowMasters, StartAsTheNearestNumbersWithoutMoments) {
  for (const std::size_t count : std::initializer_list<std::size_t>{0, 1, 255, 16384, 40001}) {
    const TileValues values = random_values(count, count);
    FormatTile tile(GetParam(), count);
    tile.initialize(values.master);
    std::vector<float> read(count);
    ASSERT_TRUE(read_states(tile.tile(), StateKind::master, ElementCount(0), read).has_value());
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(tile.master(i), rounded_to(dtype(), values.master[i]));
      ASSERT_EQ(read[i], tile.master(i));
      ASSERT_EQ(tile.m(i), 0.0);
      ASSERT_EQ(tile.v(i), 0.0);
    }
  }
}

// Rounding that repeats itself, from step to step or from block to block, would move a weight for ever the same way.
TEST_P(NarrowMasters, AreRoundedWithOtherRandomNumbersInEachStepAndBlock) {
  constexpr std::size_t count = 2 * 16384;
  const auto results = [&](std::uint64_t step, std::uint64_t first_element) {
    FormatTile tile(GetParam(), count, DType::fp32, first_element);
    tile.initialize(std::vector<float>(count, 1.0f));
    tile.set_gradient(std::vector<float>(count, -1.0f));
    // Half the distance, whatever the step.
    const auto rate = static_cast<float>(spacing_of(dtype(), 1.0) / 2);
    EXPECT_TRUE(
        adam_step({.learning_rate = rate, .beta1 = 0, .beta2 = 0, .epsilon = 0}, step, 1.0f, tile.tile()));
    std::vector<float> masters(count);
    for (std::size_t i = 0; i < count; ++i) masters[i] = tile.master(i);
    return masters;
  };
  const auto same = [](std::span<const float> left, std::span<const float> right) {
    double equal = 0;
    for (std::size_t i = 0; i < left.size(); ++i) equal += left[i] == right[i] ? 1.0 : 0.0;
    return equal / static_cast<double>(left.size());
  };
  const auto one = results(1, 0);
  const std::span<const float> whole(one);

  // Two Weyl sequences agree in a part of their places, which depends on the distance of their starts.
  for (const double part : {same(whole, results(2, 0)), same(whole, results(1, 77)),
                            same(whole.first(16384), whole.last(16384))}) {
    EXPECT_LT(part, 0.999);
  }
  EXPECT_EQ(results(1, 0), one);
}

}  // namespace
}  // namespace penstock::test
