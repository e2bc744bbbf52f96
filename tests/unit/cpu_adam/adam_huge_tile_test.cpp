#include <penstock/cpu_adam/adam.hpp>

#include "kit/sanitizer.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace penstock::test {

using namespace cpu_adam;
namespace {

constexpr std::uint64_t block = 16384;

/// A large address range; only touched pages take memory.
class SparseBytes {
 public:
  explicit SparseBytes(ByteCount size)
      : size_(size),
        data_(::mmap(nullptr, size.value(), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseBytes() {
    if (granted()) ::munmap(data_, size_.value());
  }
  SparseBytes(const SparseBytes&) = delete;
  SparseBytes& operator=(const SparseBytes&) = delete;
  [[nodiscard]] bool granted() const { return data_ != MAP_FAILED; }
  [[nodiscard]] HostSpan span() const { return {static_cast<std::byte*>(data_), size_}; }

 private:
  ByteCount size_;
  void* data_;
};

struct OnlyBlocks final : BlockObserver {
  std::set<std::size_t> wanted;
  std::size_t refused = 0;
  bool before_update(std::size_t number, ConstHostSpan) noexcept override {
    return wanted.contains(number) || (++refused, false);
  }
  void after_update(std::size_t, ConstHostSpan) noexcept override {}
};

class HugeTile : public testing::TestWithParam<StateFormat> {};
INSTANTIATE_TEST_SUITE_P(All, HugeTile,
                         testing::Values(StateFormat::fp32, StateFormat::split, StateFormat::split_bf16,
                                         StateFormat::split_q8),
                         [](const auto& format) { return std::string(to_string(format.param)); });

// Blocks before and after element 2^32, and the incomplete last block, get the same bits as in a tile of their own.
TEST_P(HugeTile, UpdatesBlocksBeyondElement2To32) {
  if (test::any_sanitizer) GTEST_SKIP() << "sanitizers keep a shadow of every address";
  const std::uint64_t elements = (std::uint64_t{1} << 32) + 2 * block + 99;
  const SparseBytes state(tile_bytes(GetParam(), ElementCount(elements)).value());
  const SparseBytes gradient(ByteCount(2 * elements)), parameter(ByteCount(2 * elements));
  if (!state.granted() || !gradient.granted() || !parameter.granted()) {
    GTEST_SKIP() << "the system grants no " << to_string(state.span().size()) << " of addresses";
  }
  const AdamTile tile{.state = state.span(),
                      .gradient = gradient.span(),
                      .parameter = parameter.span(),
                      .elements = ElementCount(elements),
                      .format = GetParam()};
  OnlyBlocks blocks;
  blocks.wanted = {0, (1u << 18) - 1, 1u << 18, (elements - 1) / block};
  for (const std::size_t number : blocks.wanted) {
    const auto some = gradient.span().as<std::uint16_t>().subspan(number * block,
                                                                  std::min(block, elements - number * block));
    for (std::size_t i = 0; i < some.size(); ++i)
      some[i] = static_cast<std::uint16_t>(0x3c00 + (i + number) % 99);
  }

  const AdamConfig adam{.learning_rate = 0.1f};
  const auto outcome = adam_step(adam, 1, 1.0f, tile, {.observer = &blocks});
  ASSERT_TRUE(outcome.has_value()) << outcome.error().message();
  EXPECT_EQ(outcome->blocks_updated, blocks.wanted.size());
  EXPECT_EQ(outcome->blocks_updated + blocks.refused, (elements + block - 1) / block);

  for (const std::size_t number : blocks.wanted) {
    const std::uint64_t first = number * block, count = std::min(block, elements - first);
    const ByteCount size = block_bytes(GetParam(), ElementCount(count)).value();
    const auto part = [&](const SparseBytes& of) {
      return of.span().subspan(ByteCount(2 * first), ByteCount(2 * count));
    };
    std::vector<std::uint32_t> alone_state(size.value() / 4 + 1);
    std::vector<std::uint16_t> alone_parameter(count);
    const AdamTile alone{.state = HostSpan(std::span(alone_state)).subspan({}, size),
                         .gradient = part(gradient),
                         .parameter = HostSpan(std::span(alone_parameter)),
                         .elements = ElementCount(count),
                         .format = GetParam(),
                         .first_element = first};
    ASSERT_TRUE(adam_step(adam, 1, 1.0f, alone).has_value());
    const auto whole_blocks = tile_bytes(GetParam(), ElementCount(first)).value();
    EXPECT_EQ(std::memcmp(state.span().subspan(whole_blocks, size).data(), alone_state.data(), size.value()),
              0)
        << "state of block " << number;
    EXPECT_EQ(std::memcmp(part(parameter).data(), alone_parameter.data(), 2 * count), 0)
        << "parameters of block " << number;
    EXPECT_NE(alone_parameter[0], 0);
  }
}

}  // namespace
}  // namespace penstock::test
