#include "format_tile.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <bit>
#include <span>

namespace penstock::test {

using namespace cpu_adam;
namespace {

constexpr std::size_t run = 256;

TEST(SplitQ8, KeepsSmallMomentsBesideLargeOnes) {
  constexpr std::size_t count = run;
  TileValues values = random_values(count, 8);
  for (std::size_t i = 0; i < count; ++i) values.gradient[i] = std::ldexp(1.0f, -static_cast<int>(i % 16));
  FormatTile tile(StateFormat::split_q8, count);
  tile.initialize(values.master);
  tile.set_gradient(values.gradient);
  ASSERT_TRUE(adam_step({}, 1, 1.0f, tile.tile()).has_value());

  for (std::size_t i = 0; i < count; ++i) {
    const double m = 0.1 * values.gradient[i], v = 0.001 * std::pow(values.gradient[i], 2);
    EXPECT_NEAR(tile.m(i) / m, 1.0, i % 16 < 3 ? 1.0 / 32 : 1.0 / 8) << i;
    EXPECT_NEAR(tile.v(i) / v, 1.0, i % 16 < 5 ? 1.0 / 128 : 1.0 / 16) << i;
  }
}

struct Moments {
  double m = 0, v = 0;
};

/// The formula in double.
Moments updated(const AdamConfig& config, double g, double p, Moments x) {
  if (config.decay_mode == AdamDecay::l2) g += config.weight_decay * p;
  return {config.beta1 * x.m + (1 - double{config.beta1}) * g,
          config.beta2 * x.v + (1 - double{config.beta2}) * g * g};
}

/// Moments `wanted`, each stored as one of the two codes beside it.
void expect_near(const FormatTile& tile, std::size_t i, const Moments& wanted) {
  const double v =
      std::max(wanted.v, std::ldexp(1.0, tile.lowest_exponent(i, 1)));  // there is nothing smaller
  ASSERT_LT(std::abs(tile.m(i) - wanted.m), 1.001 * tile.spacing(i, 0, std::abs(wanted.m))) << i;
  ASSERT_LT(std::abs(tile.v(i) - v), 1.001 * tile.spacing(i, 1, v)) << i;
}

/// The largest magnitudes in a run, and the configurations of the segments that it is in.
struct Run {
  double g = 0, p = 0;
  Moments largest;
  std::vector<AdamConfig> configs;

  [[nodiscard]] Moments bound() const {
    Moments most;
    for (const AdamConfig& config : configs) {
      const Moments some = updated(config, g, p, largest);
      most = {std::max(most.m, some.m), std::max(most.v, some.v)};
    }
    return most;
  }
};

/// Steps whose gradients, of one sign or the other, jump by up to 2^28, all of a run or one element of it.
void expect_scales_that_hold_every_moment(std::span<const AdamSegment> segments, float gradient_factor,
                                          DType dtype, Isa isa) {
  const std::size_t count = segments.back().end.value();
  TileValues values = random_values(count, 11);
  FormatTile tile(StateFormat::split_q8, count, dtype);
  tile.initialize(values.master);
  SeededRandom random(12);
  const auto power = [&] { return std::ldexp(1.0f, static_cast<int>(15 * random.symmetric())); };
  for (std::uint64_t step = 1; step <= 10; ++step) {
    for (std::size_t first = 0; first < count; first += run) {
      const float size = power();
      for (std::size_t i = first; i < std::min(first + run, count); ++i) {
        values.gradient[i] = size * random.symmetric();
      }
      values.gradient[std::min(first + step * 13 % run, count - 1)] *= power();
    }
    if (dtype == DType::fp16) {
      for (float& g : values.gradient) g = std::clamp(g, -6e4f, 6e4f);
    }
    std::vector<Moments> wanted(count);
    std::vector<Run> runs(count / run + 1);
    const AdamSegment* segment = segments.data();
    for (std::size_t i = 0; i < count; ++i) {
      if (segment->end.value() == i) ++segment;
      const double g = double{rounded_to(dtype, values.gradient[i])} * gradient_factor, p = tile.master(i);
      wanted[i] = updated(segment->config, g, p, {tile.m(i), tile.v(i)});
      Run& here = runs[i / run];
      here.largest = {std::max(here.largest.m, std::abs(tile.m(i))),
                      std::max(here.largest.v, tile.v_bound(i))};
      here.g = std::max(here.g, std::abs(g));
      here.p = std::max(here.p, std::abs(p));
      here.configs.push_back(segment->config);
    }
    tile.set_gradient(values.gradient);
    ASSERT_TRUE(
        adam_step_in_segments(segments, step, gradient_factor, tile.tile(), {.isa = isa}).has_value());

    Moments bound;
    for (std::size_t i = 0; i < count; ++i) {
      if (i % run == 0) bound = runs[i / run].bound();
      // No scale is larger than the bound asks for: its power of two, or the next if it can be rounded to it.
      ASSERT_LE(tile.lowest_exponent(i, 0), std::max(std::ilogb(bound.m) + 1 - 18, -122)) << step << " " << i;
      ASSERT_LE(tile.lowest_exponent(i, 1), std::max(std::ilogb(bound.v) + 1 - 43, -123)) << step << " " << i;
      ASSERT_NO_FATAL_FAILURE(expect_near(tile, i, wanted[i])) << step;
    }
  }
}

TEST(SplitQ8, HasScalesThatHoldAllResultsOfAStep) {
  const AdamConfig adamw{.learning_rate = 0.5f, .weight_decay = 3.0f};
  AdamConfig l2 = adamw, forgetful = adamw;
  l2.decay_mode = AdamDecay::l2;
  forgetful.beta1 = forgetful.beta2 = 0;
  const std::vector<AdamSegment> of_one_kind[] = {{{ElementCount(3 * run + 77), adamw}},
                                                  {{ElementCount(3 * run + 77), l2}}};
  // Cut in registers, between runs and twice within one.
  const std::vector<AdamSegment> mixed = {
      {ElementCount(100), adamw},      {ElementCount(131), forgetful}, {ElementCount(run), adamw},
      {ElementCount(run + 1), l2},     {ElementCount(2 * run), adamw}, {ElementCount(3 * run - 7), forgetful},
      {ElementCount(3 * run + 5), l2}, {ElementCount(4 * run), adamw}};
  for (const float gradient_factor : {1.0f, -0.25f}) {
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      for (const Isa isa : isas) {
        if (!is_runnable(isa)) continue;
        SCOPED_TRACE(std::string(to_string(dtype)) + " " + std::string(to_string(isa)));
        for (const auto& segments : {of_one_kind[0], of_one_kind[1], mixed}) {
          ASSERT_NO_FATAL_FAILURE(
              expect_scales_that_hold_every_moment(segments, gradient_factor, dtype, isa));
        }
      }
    }
  }
}

// A master can exceed its parameter by half the distance between parameters. In this test only that difference decides
// whether the scale can represent the moments when they are rounded up.
TEST(SplitQ8, HasScalesThatHoldMomentsMadeOfMastersAlone) {
  const float master = std::bit_cast<float>(0x3ff07fffu);
  FormatTile tile(StateFormat::split_q8, run);
  tile.initialize(std::vector<float>(run, master));
  tile.set_gradient(std::vector<float>(run, 0.0f));
  ASSERT_TRUE(adam_step({.beta1 = 0, .weight_decay = 1, .decay_mode = AdamDecay::l2}, 1, 1.0f, tile.tile())
                  .has_value());
  for (std::size_t i = 0; i < run; ++i) {
    ASSERT_NO_FATAL_FAILURE(expect_near(tile, i, {master, 0.001 * std::pow(master, 2)}));
  }
}

// With L2 decay, gradients that cancel their masters leave a scale that is much larger than all v. Restoring gives the
// run a smaller one, on which no later result may depend.
TEST(SplitQ8, ContinuesFromRestoredMomentsWhateverTheScaleWas) {
  constexpr std::size_t count = 16 * run;
  TileValues values = random_values(count, 9);
  for (std::size_t i = 0; i < count; ++i) {
    const float size = 1.0f + static_cast<float>(i / run) / 16;
    values.master[i] = i % run == 0 ? 256.0f : 0.0f;
    values.gradient[i] = i % run == 0 ? -256.0f : std::ldexp(size, -static_cast<int>(i % 20));
  }
  FormatTile original(StateFormat::split_q8, count), resumed(StateFormat::split_q8, count);
  original.initialize(values.master);
  original.set_gradient(values.gradient);
  ASSERT_TRUE(
      adam_step({.weight_decay = 1, .decay_mode = AdamDecay::l2}, 1, 1.0f, original.tile()).has_value());
  std::vector<float> m(count), v(count);
  for (std::size_t i = 0; i < count; ++i) {
    m[i] = static_cast<float>(original.m(i));
    v[i] = static_cast<float>(original.v(i));
    values.master[i] = original.master(i);
  }
  ASSERT_TRUE(restore_tile({values.master, m, v}, resumed.tile()).has_value());
  ASSERT_LT(resumed.lowest_exponent(1, 1), original.lowest_exponent(1, 1) - 12);

  for (std::size_t i = 0; i < count; ++i) values.gradient[i] *= i % run == 0 ? 0.0f : 0.5f;
  for (std::uint64_t step = 2; step <= 4; ++step) {
    for (FormatTile* const tile : {&original, &resumed}) {
      tile->set_gradient(values.gradient);
      ASSERT_TRUE(adam_step({}, step, 1.0f, tile->tile()).has_value());
    }
    ASSERT_EQ(resumed.bytes(), original.bytes()) << step;
  }
}

bool says_finite(const AdamConfig& config, const TileValues& values, FormatTile& tile, Isa isa) {
  tile.initialize(values.master);
  tile.set_gradient(values.gradient);
  return !adam_step(config, 1, 1.0f, tile.tile(), {.isa = isa}).value().first_non_finite_block;
}

TEST(SplitQ8, ReportsAnInfiniteMomentExactlyWhereOneIsStored) {
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    for (const float gradient : {1.75e19f, 1.8e19f, 1.84e19f, 1.8446e19f, 1.85e19f}) {
      TileValues values = random_values(run, 3);
      std::fill(values.gradient.begin(), values.gradient.end(), gradient);
      FormatTile tile(StateFormat::split_q8, run);
      const bool finite = says_finite({.beta2 = 0}, values, tile, isa);
      bool stored_finite = true;
      for (std::size_t i = 0; i < run; ++i) stored_finite &= tile.v(i) < 0x1p128;
      EXPECT_EQ(finite, stored_finite) << to_string(isa) << " " << gradient;
    }
  }
}

TEST(SplitQ8, IgnoresABoundThatIsNotFinite) {
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    FormatTile tile(StateFormat::split_q8, run);
    TileValues values = random_values(run, 4);
    values.gradient[0] = 1.2e19f;
    values.master[1] = 1e19f;
    EXPECT_TRUE(
        says_finite({.learning_rate = 0, .weight_decay = 1, .decay_mode = AdamDecay::l2}, values, tile, isa))
        << to_string(isa);
    // A parameter that is infinite, of a master that is not, is no bound at all.
    values = random_values(run, 5);
    values.master[2] = 3.4e38f;
    const AdamConfig config{.learning_rate = 0, .weight_decay = 1e-20f, .decay_mode = AdamDecay::l2};
    EXPECT_TRUE(says_finite(config, values, tile, isa)) << to_string(isa);
    for (std::size_t i = 0; i < run; ++i) {
      const Moments wanted = updated(config, values.gradient[i], values.master[i], {});
      ASSERT_NO_FATAL_FAILURE(expect_near(tile, i, wanted)) << to_string(isa);
      ASSERT_LT(tile.spacing(i, 1, 0), 1e22) << to_string(isa);  // 2^-47 of the largest: 10^34
    }
  }
}

}  // namespace
}  // namespace penstock::test
