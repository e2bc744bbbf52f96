#include "kernels/adam_element.hpp"
#include "cpu_adam/adam_coefficients.hpp"

#include "tile_fixture.hpp"

#include <penstock/cpu_adam/adam.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace penstock::test {

using namespace cpu_adam;
namespace {

constexpr std::size_t count = 2 * 16384 + 777;
/// The first step moves no master.
AdamConfig adam(AdamDecay mode, std::uint64_t step) {
  return {.learning_rate = step == 1 ? 0.0f : 1e-2f, .weight_decay = 0.1f, .decay_mode = mode};
}

struct Memory {
  explicit Memory(StateFormat state_format)
      : format(state_format),
        state(tile_bytes(format, ElementCount(count)).value().value() / sizeof(float) + 1),
        parameter(count) {
    TileValues values = random_values(count, 9);
    for (std::size_t i = 0; i < count; i += 5) values.master[i] = tie(i);
    gradient = values.gradient;
    EXPECT_TRUE(initialize_tile(ConstHostSpan(std::span(values.master)), DType::fp32, tile()).has_value());
  }
  [[nodiscard]] AdamTile tile() {
    return {.state = HostSpan(std::span(state)).subspan({}, tile_bytes(format, ElementCount(count)).value()),
            .gradient = HostSpan(std::span(gradient)),
            .parameter = HostSpan(std::span(parameter)),
            .elements = ElementCount(count),
            .gradient_dtype = DType::fp32,
            .format = format};
  }
  StateFormat format;
  std::vector<float> state, gradient;
  std::vector<std::uint16_t> parameter;
};

/// Runs the code of a GPU's threads for one element after the other, the last one first.
template <class Tile>
void update_backwards(const Tile& tile, const std::vector<float>& gradient, AdamDecay mode,
                      std::uint64_t step) {
  const auto coefficients = adam_coefficients(adam(mode, step), step, 0.5f).value();
  const kernels::AdamOperands<kernels::ScalarLane> operands(coefficients);
  for (std::size_t i = count; i-- > 0;) {
    const std::size_t first = i / 16384 * 16384;
    EXPECT_TRUE(tile.update(coefficients, operands, gradient[i],
                            {i, first, std::min<std::size_t>(16384, count - first)}));
  }
}

// The CUDA kernel runs this code for every element, so it gives the CPU's bits if this code does.
TEST(AdamElement, GivesTheBitsOfTheTilesUpdate) {
  for (const AdamDecay mode : {AdamDecay::decoupled, AdamDecay::l2}) {
    for (const StateFormat format : {StateFormat::fp32, StateFormat::split}) {
      Memory one(format), all(format);
      for (std::uint64_t step = 1; step <= 3; ++step) {
        ASSERT_TRUE(adam_step(adam(mode, step), step, 0.5f, all.tile()).has_value());
        auto* const parameter = reinterpret_cast<kernels::Bf16*>(one.parameter.data());
        if (format == StateFormat::fp32) {
          const kernels::Fp32Tile<kernels::Bf16> tile{one.state.data(), parameter};
          update_backwards(tile, one.gradient, mode, step);
        } else {
          const kernels::SplitTile tile{reinterpret_cast<kernels::U8*>(one.state.data()), parameter};
          update_backwards(tile, one.gradient, mode, step);
        }
      }
      EXPECT_EQ(std::memcmp(one.state.data(), all.state.data(), one.state.size() * sizeof(float)), 0)
          << to_string(format);
      EXPECT_EQ(one.parameter, all.parameter) << to_string(format);
    }
  }
}

TEST(AdamElement, KeepsANaNInFormatSplit) {
  const auto coefficients = adam_coefficients({}, 1, 1.0f).value();
  const kernels::AdamOperands<kernels::ScalarLane> operands(coefficients);
  for (const std::uint32_t nan : {0x7fffffffu, 0xffffffffu, 0x7fc00000u}) {  // CUDA makes the first
    std::uint16_t state[5] = {};
    kernels::Bf16 parameter{0x3f80};
    const kernels::SplitTile tile{reinterpret_cast<kernels::U8*>(state), &parameter};
    for (const float gradient : {std::bit_cast<float>(nan), 1.0f}) {
      EXPECT_FALSE(tile.update(coefficients, operands, gradient, {0, 0, 1}));
      EXPECT_TRUE(std::isnan(kernels::widen(parameter))) << std::hex << nan;
    }
  }
}

TEST(AdamElement, SaysWhetherItIsFinite) {
  using Tile = kernels::Fp32Tile<kernels::Bf16>;
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(Tile::is_finite(-3e38f, 3e38f));
  EXPECT_FALSE(Tile::is_finite(-inf, 0.0f));
  EXPECT_FALSE(Tile::is_finite(0.0f, inf));
  EXPECT_FALSE(Tile::is_finite(NAN, 0.0f));
  EXPECT_FALSE(Tile::is_finite(0.0f, -NAN));
}

}  // namespace
}  // namespace penstock::test
