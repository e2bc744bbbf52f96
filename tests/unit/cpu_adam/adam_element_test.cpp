#include "kernels/adam_element.hpp"
#include "cpu_adam/adam_coefficients.hpp"

#include "tile_fixture.hpp"

#include <penstock/cpu_adam/adam.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace penstock::test {

using namespace cpu_adam;
namespace {

constexpr std::size_t count = 2 * 16384 + 777;
AdamConfig adam(AdamDecay mode) {
  return {.learning_rate = 1e-2f, .weight_decay = 0.1f, .decay_mode = mode};
}

struct Memory {
  explicit Memory(StateFormat state_format)
      : format(state_format),
        state(tile_bytes(format, ElementCount(count)).value().value() / sizeof(float) + 1),
        parameter(count) {
    const TileValues values = random_values(count, 9);
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
  const auto coefficients = adam_coefficients(adam(mode), step, 0.5f).value();
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
        ASSERT_TRUE(adam_step(adam(mode), step, 0.5f, all.tile()).has_value());
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
