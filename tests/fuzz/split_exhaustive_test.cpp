#include <penstock/cpu_adam/adam.hpp>

#include <gtest/gtest.h>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace penstock {
namespace {

using cpu_adam::StateFormat;

constexpr std::size_t count = 1 << 20;

/// As many masters in a split format; an update by gradients of zero.
struct SplitTile {
  explicit SplitTile(StateFormat format)
      : state(cpu_adam::tile_bytes(format, ElementCount(count)).value().value() / sizeof(float) + 1) {
    tile = {
        .state =
            HostSpan(std::span(state)).subspan({}, cpu_adam::tile_bytes(format, ElementCount(count)).value()),
        .gradient = HostSpan(std::span(gradients)),
        .parameter = HostSpan(std::span(parameters)),
        .elements = ElementCount(count),
        .format = format};
  }

  std::vector<float> state, masters = std::vector<float>(count), read = std::vector<float>(count);
  std::vector<std::uint16_t> parameters = std::vector<std::uint16_t>(count);
  std::vector<std::uint16_t> gradients = std::vector<std::uint16_t>(count);
  cpu_adam::AdamTile tile;

  /// The masters of these bit patterns, from here on.
  void initialize(std::uint64_t first) {
    for (std::size_t i = 0; i < count; ++i) {
      masters[i] = std::bit_cast<float>(static_cast<std::uint32_t>(first + i));
    }
    ASSERT_TRUE(cpu_adam::initialize_tile(ConstHostSpan(std::span(masters)), DType::fp32, tile).has_value());
  }
  /// Finite and infinite masters have all their bits, and parameters are rounded to nearest; NaNs are NaNs in both.
  [[nodiscard]] bool is_intact() {
    if (!cpu_adam::read_states(tile, cpu_adam::StateKind::master, ElementCount(0), read)) return false;
    const std::uint32_t ties_to_even = tile.format != StateFormat::split_q8;
    std::uint32_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {  // without branches, so that it vectorises
      const auto bits = std::bit_cast<std::uint32_t>(masters[i]), got = std::bit_cast<std::uint32_t>(read[i]);
      const std::uint32_t parameter = parameters[i];
      const std::uint32_t nearest = (bits + 0x8000u - (ties_to_even & ~(bits >> 16))) >> 16;
      const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
      const bool nans = (got & 0x7fffffffu) > 0x7f800000u && (parameter & 0x7fffu) > 0x7f80u;
      const bool same = got == bits && parameter == nearest;
      wrong |= nan ? !nans : !same;
    }
    return wrong == 0;
  }
};

class SplitExhaustive : public testing::TestWithParam<StateFormat> {};

TEST_P(SplitExhaustive, JoinsWhatItSplitForEveryPatternOf32Bits) {
  SplitTile tile(GetParam());
  for (std::uint64_t first = 0; first < std::uint64_t{1} << 32; first += count) {
    tile.initialize(first);
    ASSERT_TRUE(tile.is_intact()) << first;
  }
}

// Every instruction set has its own instructions for joining and splitting.
TEST_P(SplitExhaustive, EveryIsaKeepsEveryMasterThroughAStepThatMovesNothing) {
  SplitTile tile(GetParam());
  for (std::uint64_t first = 0; first < std::uint64_t{1} << 32; first += count) {
    const bool finite = std::isfinite(std::bit_cast<float>(static_cast<std::uint32_t>(first)));
    tile.initialize(first);
    for (const Isa isa : {Isa::scalar, Isa::x86_64_v2, Isa::x86_64_v3, Isa::x86_64_v4, Isa::neon}) {
      if (!is_runnable(isa)) continue;
      const auto outcome = cpu_adam::adam_step({.learning_rate = 0.0f}, 1, 1.0f, tile.tile, {.isa = isa});
      ASSERT_TRUE(outcome.has_value());
      ASSERT_EQ(outcome->first_non_finite_block.has_value(), !finite);
      ASSERT_TRUE(tile.is_intact()) << to_string(isa) << " " << first;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, SplitExhaustive,
                         testing::Values(StateFormat::split, StateFormat::split_bf16, StateFormat::split_q8),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

}  // namespace
}  // namespace penstock
