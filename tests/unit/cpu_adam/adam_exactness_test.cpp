#include "tile_fixture.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock::test {

using namespace cpu_adam;
namespace {

constexpr std::uint64_t steps = 3;
constexpr DType dtypes[] = {DType::fp32, DType::bf16, DType::fp16};

AdamConfig config(AdamDecay mode = AdamDecay::decoupled, float weight_decay = 0.1f) {
  return {.learning_rate = 1e-2f, .weight_decay = weight_decay, .decay_mode = mode};
}

/// Values in which every class of number occurs, at positions that vectors and tails both meet.
TileValues mixed_values(std::size_t count) {
  TileValues values = random_values(count, 77);
  const float inf = std::numeric_limits<float>::infinity(), tiny = std::numeric_limits<float>::denorm_min();
  const float specials[] = {0.0f, -0.0f, tiny, -1e-40f, 3e38f, inf, -inf, 1e-7f, 65519.0f};
  for (std::size_t i = 0; i < count; i += 5) {
    values.gradient[i] = specials[i / 5 % std::size(specials)];
    if (i % 2 == 0) values.master[i] = specials[i / 7 % std::size(specials)];
  }
  return values;
}

std::vector<std::byte> run(TileMemory& memory, const TileValues& values, const AdamConfig& adam,
                           const AdamExecution& execution) {
  memory.set(values);
  for (std::uint64_t step = 1; step <= steps; ++step) {
    EXPECT_TRUE(adam_step(adam, step, 0.5f, memory.tile(), execution).has_value());
  }
  return memory.result_bytes();
}

/// Treats NaNs of any payload as equal: the compiler may choose which operand's payload survives.
std::vector<std::byte> without_nan_payloads(std::vector<std::byte> bytes, std::size_t count,
                                            DType parameter) {
  for (std::size_t i = 0; i < 3 * count; ++i) {
    if (std::isnan(get(DType::fp32, &bytes[4 * i]))) put(DType::fp32, &bytes[4 * i], NAN);
  }
  const std::size_t size = size_of(parameter).value();
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* at = &bytes[12 * count + size * i];
    if (std::isnan(get(parameter, at))) std::fill_n(at, size, std::byte{0xff});
  }
  return bytes;
}

TEST(AdamExactness, EveryInstructionSetGivesTheSameBitsForEverySizeAndDtype) {
  int compared = 0;
  for (const std::size_t count :
       std::initializer_list<std::size_t>{0, 1, 7, 63, 64, 65, 127, 128, 129, 4099, 16383, 16384, 16385}) {
    const TileValues values = mixed_values(count);
    for (const DType gradient : dtypes) {
      for (const DType parameter : dtypes) {
        TileMemory memory(count, gradient, parameter);
        const auto wanted =
            without_nan_payloads(run(memory, values, config(), {.isa = Isa::scalar}), count, parameter);
        for (const Isa isa : isas) {
          if (!is_runnable(isa)) continue;
          for (const bool nontemporal : {false, true}) {
            const AdamExecution execution{.isa = isa, .nontemporal_parameter = nontemporal};
            const auto got = without_nan_payloads(run(memory, values, config(), execution), count, parameter);
            ASSERT_EQ(got, wanted) << to_string(isa) << (nontemporal ? ", past caches, " : ", ") << count
                                   << " elements, " << to_string(gradient) << " to " << to_string(parameter);
          }
          ++compared;
        }
      }
    }
  }
  EXPECT_GE(compared, 13 * 9);
}

TEST(AdamExactness, EveryModeGivesTheSameBitsOnEveryInstructionSet) {
  const TileValues values = random_values(1000, 3);
  for (const AdamDecay mode : {AdamDecay::decoupled, AdamDecay::l2}) {
    for (const float weight_decay : {0.0f, 0.3f}) {
      TileMemory memory(values.size(), DType::bf16, DType::bf16);
      const auto wanted = run(memory, values, config(mode, weight_decay), {.isa = Isa::scalar});
      for (const Isa isa : isas) {
        if (!is_runnable(isa)) continue;
        EXPECT_EQ(run(memory, values, config(mode, weight_decay), {.isa = isa}), wanted) << to_string(isa);
      }
    }
  }
}

TEST(AdamExactness, ThreadsAndAlignmentDoNotChangeABit) {
  constexpr std::size_t count = 5 * 16384 + 77;
  const TileValues values = random_values(count, 8);
  TileMemory plain(count, DType::bf16, DType::bf16);
  const auto wanted = run(plain, values, config(), {});

  for (const std::uint32_t threads : {1u, 2u, 3u, 8u}) {
    parallel::Workers workers = parallel::Workers::create({.threads = threads}).value();
    for (const std::size_t slack : std::initializer_list<std::size_t>{0, 1, 3, 8, 13}) {
      TileMemory shifted(count, DType::bf16, DType::bf16, slack);
      EXPECT_EQ(run(shifted, values, config(), {.workers = &workers}), wanted) << threads << ", " << slack;
    }
  }
}

// Parameters at a multiple of 64 B, which non-temporal stores require; with tails and several blocks, in several
// threads.
TEST(AdamExactness, NonTemporalStoresDoNotChangeABit) {
  parallel::Workers workers = parallel::Workers::create({.threads = 2}).value();
  for (const std::size_t count : {1u, 65u, 129u, 3u * 16384u + 777u}) {
    const TileValues values = random_values(count, 4);
    for (const DType parameter : dtypes) {
      TileMemory memory(count, DType::bf16, parameter);
      run(memory, values, config(), {.isa = Isa::scalar});
      const std::size_t bytes = size_of(parameter).value() * count;
      std::vector<std::byte> out(bytes + 128, std::byte{0xa5});
      const std::size_t at = 64 - reinterpret_cast<std::uintptr_t>(out.data()) % 64;
      for (const Isa isa : isas) {
        if (!is_runnable(isa)) continue;
        TileMemory again(count, DType::bf16, parameter);
        again.set(values);
        AdamTile tile = again.tile();
        tile.parameter = HostSpan(out.data() + at, ByteCount(bytes));
        const AdamExecution execution{.workers = &workers, .isa = isa, .nontemporal_parameter = true};
        for (std::uint64_t step = 1; step <= steps; ++step) {
          ASSERT_TRUE(adam_step(config(), step, 0.5f, tile, execution).has_value());
        }
        EXPECT_EQ(std::memcmp(out.data() + at, memory.tile().parameter.data(), bytes), 0)
            << to_string(isa) << ", " << count << " " << to_string(parameter);
        EXPECT_EQ(
            std::count(out.begin() + static_cast<std::ptrdiff_t>(at + bytes), out.end(), std::byte{0xa5}),
            static_cast<std::ptrdiff_t>(128 - at));
      }
    }
  }
}

TEST(AdamExactness, DivisionIntoTilesDoesNotChangeABit) {
  constexpr std::size_t count = 6 * 16384 + 129;
  const TileValues values = random_values(count, 9);
  TileMemory whole(count, DType::bf16, DType::fp16);
  const auto wanted = run(whole, values, config(), {});

  for (const std::size_t blocks : std::initializer_list<std::size_t>{1, 2, 5}) {
    TileMemory cut(count, DType::bf16, DType::fp16);
    cut.set(values);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      for (std::size_t first = 0; first < count; first += blocks * 16384) {
        const std::size_t length = std::min(blocks * 16384, count - first);
        ASSERT_TRUE(adam_step(config(), step, 0.5f, cut.cut(first, length)).has_value());
      }
    }
    EXPECT_EQ(cut.result_bytes(), wanted) << blocks;
  }
}

TEST(AdamExactness, AStepIsAFunctionOfItsNumberAndNotOfThoseBefore) {
  const TileValues values = random_values(100, 4);
  TileMemory first(100, DType::fp32, DType::fp32), second(100, DType::fp32, DType::fp32);
  first.set(values);
  second.set(values);
  TileMemory other(100, DType::fp32, DType::fp32);
  other.set(values);
  ASSERT_TRUE(adam_step({.beta1 = 0.5f}, 3, 1.0f, other.tile()).has_value());

  ASSERT_TRUE(adam_step(config(), 9, 1.0f, first.tile()).has_value());
  ASSERT_TRUE(adam_step(config(), 10, 1.0f, second.tile()).has_value());

  EXPECT_NE(first.result_bytes(), second.result_bytes());
  second.set(values);
  ASSERT_TRUE(adam_step(config(), 9, 1.0f, second.tile()).has_value());
  EXPECT_EQ(first.result_bytes(), second.result_bytes());
}

#if defined(__x86_64__)
TEST(AdamExactness, TheCallersFloatingPointModeChangesNothingAndComesBack) {
  constexpr std::size_t count = 2 * 16384 + 100;
  TileValues values = mixed_values(count);
  for (float& g : values.gradient) g = std::isfinite(g) ? g : 0.0f;
  for (float& p : values.master) p = std::isfinite(p) ? p : 0.0f;
  TileMemory memory(count, DType::fp32, DType::fp16);
  const auto wanted = run(memory, values, config(), {});

  const unsigned saved = _mm_getcsr();
  const unsigned hostile = 0x1f80u | 0x8040u | 0x6000u;  // flush to zero, subnormals are zero, round to zero
  parallel::Workers workers = parallel::Workers::create({.threads = 2}).value();
  for (parallel::Workers* chosen : {static_cast<parallel::Workers*>(nullptr), &workers}) {
    memory.set(values);
    std::vector<unsigned> after;
    for (std::uint64_t step = 1; step <= steps; ++step) {
      _mm_setcsr(hostile);
      const auto outcome = adam_step(config(), step, 0.5f, memory.tile(), {.workers = chosen});
      after.push_back(_mm_getcsr() & 0xffc0u);
      _mm_setcsr(saved);
      EXPECT_TRUE(outcome.has_value());
    }
    EXPECT_EQ(memory.result_bytes(), wanted);
    EXPECT_EQ(after, std::vector<unsigned>(steps, hostile));
  }
}
#endif

}  // namespace
}  // namespace penstock::test
