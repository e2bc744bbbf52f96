#include <penstock/cpu_adam/adam.hpp>

#include <gtest/gtest.h>
#include <bit>
#include <cstring>
#include <vector>

namespace penstock {
namespace {

TEST(SplitExhaustive, JoinsWhatItSplitForEveryPatternOf32Bits) {
  constexpr std::size_t count = 1 << 20;
  std::vector<float> masters(count), read(count);
  std::vector<std::uint16_t> parameters(count);
  std::vector<float> state(tile_bytes(StateFormat::split, ElementCount(count)).value().value() /
                           sizeof(float));
  const AdamTile tile{.state = HostSpan(std::span(state)),
                      .parameter = HostSpan(std::span(parameters)),
                      .elements = ElementCount(count),
                      .format = StateFormat::split};
  for (std::uint64_t first = 0; first < std::uint64_t{1} << 32; first += count) {
    for (std::size_t i = 0; i < count; ++i)
      masters[i] = std::bit_cast<float>(static_cast<std::uint32_t>(first + i));
    ASSERT_TRUE(initialize_tile(ConstHostSpan(std::span(masters)), DType::fp32, tile).has_value());
    ASSERT_TRUE(read_masters(tile, ElementCount(0), read).has_value());
    ASSERT_EQ(std::memcmp(masters.data(), read.data(), count * sizeof(float)), 0) << first;
  }
}

}  // namespace
}  // namespace penstock
