#include <penstock/cpu_adam/adam.hpp>

#include <gtest/gtest.h>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

namespace penstock {
namespace {

constexpr std::size_t count = 1 << 20;

/// So many masters as a tile of the split format; an update by gradients of zero.
struct SplitTile {
  std::vector<float> masters = std::vector<float>(count), read = std::vector<float>(count);
  std::vector<std::uint16_t> parameters = std::vector<std::uint16_t>(count);
  std::vector<std::uint16_t> gradients = std::vector<std::uint16_t>(count);
  std::vector<float> state = std::vector<float>(
      cpu_adam::tile_bytes(cpu_adam::StateFormat::split, ElementCount(count)).value().value() /
      sizeof(float));
  cpu_adam::AdamTile tile{.state = HostSpan(std::span(state)),
                          .gradient = HostSpan(std::span(gradients)),
                          .parameter = HostSpan(std::span(parameters)),
                          .elements = ElementCount(count),
                          .format = cpu_adam::StateFormat::split};

  /// The masters of these bit patterns, from here on.
  void initialize(std::uint64_t first) {
    for (std::size_t i = 0; i < count; ++i) {
      masters[i] = std::bit_cast<float>(static_cast<std::uint32_t>(first + i));
    }
    ASSERT_TRUE(cpu_adam::initialize_tile(ConstHostSpan(std::span(masters)), DType::fp32, tile).has_value());
  }
  [[nodiscard]] bool reads_back() {
    return cpu_adam::read_states(tile, cpu_adam::StateKind::master, ElementCount(0), read).has_value() &&
           std::memcmp(masters.data(), read.data(), count * sizeof(float)) == 0;
  }
};

TEST(SplitExhaustive, JoinsWhatItSplitForEveryPatternOf32Bits) {
  SplitTile tile;
  for (std::uint64_t first = 0; first < std::uint64_t{1} << 32; first += count) {
    tile.initialize(first);
    ASSERT_TRUE(tile.reads_back()) << first;
  }
}

// Every instruction set has its own instructions for joining and splitting.
TEST(SplitExhaustive, EveryIsaKeepsEveryFiniteMasterThroughAStepThatMovesNothing) {
  SplitTile tile;
  for (std::uint64_t first = 0; first < std::uint64_t{1} << 32; first += count) {
    if (!std::isfinite(std::bit_cast<float>(static_cast<std::uint32_t>(first)))) continue;
    tile.initialize(first);
    for (const Isa isa : {Isa::scalar, Isa::x86_64_v2, Isa::x86_64_v3, Isa::x86_64_v4, Isa::neon}) {
      if (!is_runnable(isa)) continue;
      const auto outcome = cpu_adam::adam_step({.learning_rate = 0.0f}, 1, 1.0f, tile.tile, {.isa = isa});
      ASSERT_TRUE(outcome.has_value());
      ASSERT_FALSE(outcome->first_non_finite_block.has_value());
      ASSERT_TRUE(tile.reads_back()) << to_string(isa) << " " << first;
    }
  }
}

}  // namespace
}  // namespace penstock
