#include "format_tile.hpp"

#include <gtest/gtest.h>
#include <algorithm>

namespace penstock::test {
namespace {

constexpr std::size_t run = 256;

TEST(SplitQ8, KeepsWhatIsSmallBesideWhatIsLarge) {
  constexpr std::size_t count = run;
  TileValues values = random_values(count, 8);
  for (std::size_t i = 0; i < count; ++i) values.gradient[i] = std::ldexp(1.0f, -static_cast<int>(i % 16));
  FormatTile tile(StateFormat::split_q8, count);
  tile.initialize(values.master);
  tile.set_gradient(values.gradient);
  ASSERT_TRUE(adam_step({}, 1, 1.0f, tile.tile()).has_value());

  for (std::size_t i = 0; i < count; ++i) {
    const double v = 0.001 * std::pow(values.gradient[i], 2);
    EXPECT_NEAR(tile.v(i) / v, 1.0, 0.13) << i;
  }
}

struct Moments {
  double m = 0, v = 0;
};

/// The formula in double.
Moments updated(const AdamConfig& config, double g, double p, Moments x) {
  if (config.mode == AdamMode::l2) g += config.weight_decay * p;
  return {config.beta1 * x.m + (1 - double{config.beta1}) * g,
          config.beta2 * x.v + (1 - double{config.beta2}) * g * g};
}

/// Steps whose gradients, of one sign or the other, jump by up to 2^30, all of a run or one element of it.
void expect_scales_that_hold_every_moment(const AdamConfig& config, float gradient_factor, DType dtype,
                                          Isa isa) {
  constexpr std::size_t count = 3 * run + 77;
  TileValues values = random_values(count, 11);
  FormatTile tile(StateFormat::split_q8, count, dtype);
  tile.initialize(values.master);
  SeededRandom random(12);
  const auto power = [&] { return std::ldexp(1.0f, static_cast<int>(15 * random.symmetric())); };
  for (std::uint64_t step = 1; step <= 20; ++step) {
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
    std::vector<Moments> wanted(count), largest(count / run + 1);
    std::vector<double> largest_g(count / run + 1), largest_p(count / run + 1);
    for (std::size_t i = 0; i < count; ++i) {
      const double g = double{rounded_to(dtype, values.gradient[i])} * gradient_factor, p = tile.master(i);
      wanted[i] = updated(config, g, p, {tile.m(i), tile.v(i)});
      Moments& most = largest[i / run];
      most = {std::max(most.m, std::abs(tile.m(i))), std::max(most.v, tile.v(i))};
      largest_g[i / run] = std::max(largest_g[i / run], std::abs(g));
      largest_p[i / run] = std::max(largest_p[i / run], std::abs(p));
    }
    tile.set_gradient(values.gradient);
    ASSERT_TRUE(adam_step(config, step, gradient_factor, tile.tile(), {.isa = isa}).has_value());

    for (std::size_t i = 0; i < count; ++i) {
      const Moments bound = updated(config, largest_g[i / run], largest_p[i / run], largest[i / run]);
      const double lowest_m = tile.spacing(i, 0, 0) * 8, lowest_v = tile.spacing(i, 1, 0) * 8;
      // No scale is larger than that bound asks for: its power of two, or the next if it can be rounded to
      // it.
      ASSERT_LE(lowest_m, std::max(std::ldexp(1.0, std::ilogb(bound.m) + 1 - 14), 0x1p-122))
          << step << " " << i;
      ASSERT_LE(lowest_v, std::max(std::ldexp(1.0, std::ilogb(bound.v) + 1 - 31), 0x1p-123))
          << step << " " << i;
      const double m = wanted[i].m, v = std::max(wanted[i].v, lowest_v);
      ASSERT_LT(std::abs(tile.m(i) - m), 1.001 * tile.spacing(i, 0, std::abs(m))) << step << " " << i;
      ASSERT_LT(std::abs(tile.v(i) - v), 1.001 * tile.spacing(i, 1, v)) << step << " " << i;
    }
  }
}

TEST(SplitQ8, HasScalesThatHoldWhateverAStepMakesOfARun) {
  for (const AdamMode mode : {AdamMode::adamw, AdamMode::l2}) {
    for (const float gradient_factor : {1.0f, -0.25f}) {
      for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
        for (const Isa isa : isas) {
          if (!is_runnable(isa)) continue;
          const AdamConfig config{.learning_rate = 0.5f, .weight_decay = 3.0f, .mode = mode};
          SCOPED_TRACE(std::string(to_string(dtype)) + (mode == AdamMode::l2 ? " l2 " : " adamw ") +
                       std::string(to_string(isa)));
          expect_scales_that_hold_every_moment(config, gradient_factor, dtype, isa);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace penstock::test
