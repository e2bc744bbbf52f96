// Lion and Adagrad: the same bits however a step is run.

#include "one_moment_tile.hpp"

#include <gtest/gtest.h>
#include <limits>
#include <string>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock::test {
namespace {

constexpr std::uint64_t steps = 3;

/// Values in which every class of number occurs, at positions that vectors and tails both meet.
TileValues mixed_values(std::size_t count) {
  TileValues values = random_values(count, 77);
  const float inf = std::numeric_limits<float>::infinity(), tiny = std::numeric_limits<float>::denorm_min();
  const float specials[] = {0.0f, -0.0f, tiny, -1e-40f, 3e38f, inf, -inf, NAN, 1e-7f, 65519.0f};
  for (std::size_t i = 0; i < count; i += 5) {
    values.gradient[i] = specials[i / 5 % std::size(specials)];
    if (i % 2 == 0) values.master[i] = specials[i / 7 % std::size(specials)];
    if (i % 3 == 0) values.m[i] = i % 2 == 0 ? 0.0f : -0.0f;
  }
  return values;
}

void run(OneMomentTile& memory, const TileValues& values, const Hyperparameters& config,
         const UpdateExecution& execution) {
  memory.set(values);
  for (std::uint64_t step = 1; step <= steps; ++step) {
    ASSERT_TRUE(optimizer_step(config, step, 0.5f, memory.tile(), execution).has_value());
  }
}

class OneMomentExactness : public testing::TestWithParam<OneMomentKind> {
 protected:
  [[nodiscard]] static Hyperparameters config(float weight_decay = 0.1f) {
    return one_moment_config(GetParam().optimizer, 1e-2f, weight_decay);
  }
};
INSTANTIATE_TEST_SUITE_P(Every, OneMomentExactness, testing::ValuesIn(one_moment_kinds()),
                         [](const auto& kind) { return kind.param.name(); });

TEST_P(OneMomentExactness, EveryInstructionSetGivesTheSameBitsForEverySize) {
  for (const std::size_t count :
       std::initializer_list<std::size_t>{0, 1, 15, 16, 17, 63, 64, 65, 129, 4099, 16383, 16384, 16385}) {
    const TileValues values = mixed_values(count);
    for (const float weight_decay : {0.0f, 0.1f}) {
      OneMomentTile memory(GetParam(), count);
      run(memory, values, config(weight_decay), {.isa = Isa::scalar});
      const auto wanted = memory.bytes_without_payloads();
      for (const Isa isa : isas) {
        if (!is_runnable(isa)) continue;
        for (const bool nontemporal : {false, true}) {
          run(memory, values, config(weight_decay), {.isa = isa, .nontemporal_parameter = nontemporal});
          ASSERT_EQ(memory.bytes_without_payloads(), wanted)
              << to_string(isa) << ", " << count << " elements";
        }
      }
    }
  }
}

TEST_P(OneMomentExactness, ThreadsAndAlignmentDoNotChangeABit) {
  constexpr std::size_t count = 5 * 16384 + 77;
  const TileValues values = random_values(count, 8);
  OneMomentTile plain(GetParam(), count);
  run(plain, values, config(), {});
  for (const std::uint32_t threads : {1u, 2u, 5u}) {
    parallel::Workers workers = parallel::Workers::create({.threads = threads}).value();
    for (const std::size_t slack : std::initializer_list<std::size_t>{0, 1, 3, 8, 13}) {
      OneMomentTile shifted(GetParam(), count, slack);
      run(shifted, values, config(), {.workers = &workers});
      EXPECT_EQ(shifted.bytes(), plain.bytes()) << threads << ", " << slack;
    }
  }
}

TEST_P(OneMomentExactness, DivisionIntoTilesDoesNotChangeABit) {
  constexpr std::size_t count = 4 * 16384 + 129;
  const TileValues values = random_values(count, 9);
  OneMomentTile whole(GetParam(), count);
  run(whole, values, config(), {});
  for (const std::size_t blocks : std::initializer_list<std::size_t>{1, 3}) {
    OneMomentTile divided(GetParam(), count);
    divided.set(values);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      for (std::size_t first = 0; first < count; first += blocks * 16384) {
        const std::size_t length = std::min(blocks * 16384, count - first);
        ASSERT_TRUE(optimizer_step(config(), step, 0.5f, divided.cut(first, length)).has_value());
      }
    }
    EXPECT_EQ(divided.bytes(), whole.bytes()) << blocks;
  }
}

// Segments that end within a vector, beyond a block's end and at one; and a segment of a single element.
TEST_P(OneMomentExactness, SegmentsAreUpdatedAsIfEachWereItsOwnTile) {
  constexpr std::size_t count = 40'000;
  const TileValues values = random_values(count, 5);
  std::vector<OptimizerSegment> segments;
  float rate = 1e-2f;
  for (const std::size_t end : std::initializer_list<std::size_t>{77, 78, 16384 + 300, 2 * 16384, count}) {
    rate *= 1.5f;
    segments.push_back({ElementCount(end),
                        one_moment_config(GetParam().optimizer, rate, segments.size() % 2 ? 0.0f : 0.3f)});
  }
  parallel::Workers workers = parallel::Workers::create({.threads = 2}).value();
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    OneMomentTile mixed(GetParam(), count);
    mixed.set(values);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      ASSERT_TRUE(
          optimizer_step_in_segments(segments, step, 0.5f, mixed.tile(),
                                     {.workers = &workers, .isa = isa, .nontemporal_parameter = true}));
    }
    std::size_t i = 0;
    for (const OptimizerSegment& segment : segments) {
      OneMomentTile alone(GetParam(), count);
      run(alone, values, segment.config, {.isa = isa});
      for (; i < segment.end.value(); ++i) {
        ASSERT_EQ(mixed.master(i), alone.master(i)) << to_string(isa) << ", element " << i;
        ASSERT_EQ(mixed.moment(i), alone.moment(i)) << to_string(isa) << ", element " << i;
        ASSERT_EQ(mixed.parameter(i), alone.parameter(i)) << to_string(isa) << ", element " << i;
      }
    }
  }
}

// The gradient times the factor is rounded once: it is the gradient that the formula uses.
TEST_P(OneMomentExactness, TheGradientIsMultipliedByTheFactorFirst) {
  const TileValues values = random_values(1000, 3);
  OneMomentTile scaled(GetParam(), 1000),
      plain({GetParam().optimizer, GetParam().format, DType::fp32, GetParam().parameter}, 1000);
  scaled.set(values);
  TileValues products = values;
  for (std::size_t i = 0; i < 1000; ++i) products.gradient[i] = scaled.gradient(i) * (1.0f / 3.0f);
  plain.set(products);

  ASSERT_TRUE(optimizer_step(config(), 1, 1.0f / 3.0f, scaled.tile()).has_value());
  ASSERT_TRUE(optimizer_step(config(), 1, 1.0f, plain.tile()).has_value());

  EXPECT_EQ(scaled.bytes(), plain.bytes());
}

TEST(OneMoment, InMomentsHasTheBitsOfFp32) {
  constexpr std::size_t count = 16384 + 77;
  const TileValues values = random_values(count, 7);
  for (const Optimizer optimizer : {Optimizer::lion, Optimizer::adagrad}) {
    OneMomentTile fp32({optimizer, StateFormat::fp32, DType::bf16, DType::fp32}, count);
    OneMomentTile moments({optimizer, StateFormat::moments, DType::bf16, DType::fp32}, count);
    run(fp32, values, one_moment_config(optimizer), {});
    run(moments, values, one_moment_config(optimizer), {});
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(moments.master(i), fp32.master(i)) << i;
      ASSERT_EQ(moments.moment(i), fp32.moment(i)) << i;
    }
  }
}

#if defined(__x86_64__)
TEST(OneMoment, TheCallersFloatingPointModeChangesNothingAndComesBack) {
  constexpr std::size_t count = 1000;
  TileValues values = random_values(count, 2);
  for (std::size_t i = 0; i < count; i += 3) values.gradient[i] *= 1e-38f;
  const unsigned saved = _mm_getcsr();
  const unsigned hostile = 0x1f80u | 0x8040u | 0x6000u;  // flush to zero, subnormals are zero, round to zero
  for (const Optimizer optimizer : {Optimizer::lion, Optimizer::adagrad}) {
    // The product of rate and decay is rounded up, and large enough to be seen in the masters.
    const Hyperparameters config =
        optimizer == Optimizer::lion
            ? Hyperparameters(LionConfig{.learning_rate = 0.37f, .weight_decay = 0.9f})
            : Hyperparameters(AdagradConfig{});
    OneMomentTile memory({optimizer, StateFormat::fp32, DType::fp32, DType::fp16}, count);
    run(memory, values, config, {});
    const auto wanted = memory.bytes();
    memory.set(values);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      _mm_setcsr(hostile);
      const auto outcome = optimizer_step(config, step, 0.5f, memory.tile());
      const unsigned after = _mm_getcsr() & 0xffc0u;
      _mm_setcsr(saved);
      EXPECT_TRUE(outcome.has_value());
      EXPECT_EQ(after, hostile);
    }
    EXPECT_EQ(memory.bytes(), wanted);
  }
}
#endif

}  // namespace
}  // namespace penstock::test
