#include "zero/engine/commit_search.hpp"

#include <gtest/gtest.h>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

namespace penstock::zero {
namespace {

// As many checkpoints as a long run of 64 ranks keeps: the control channel takes 1 MiB of all ranks at a time.
TEST(ExchangeLists, OfAnyLengthInPartsThatTheControlChannelTakes) {
  constexpr std::size_t ranks = 64;
  std::vector<std::uint64_t> mine(30'000);
  std::iota(mine.begin(), mine.end(), 7);
  std::size_t largest = 0;
  // Rank 0 has the list, the others have none.
  const auto exchange = [&](ConstHostSpan bytes, HostSpan all) {
    EXPECT_EQ(all.size(), bytes.size() * ranks);
    largest = std::max(largest, all.size().value());
    std::memset(all.data(), 0, all.size().value());
    std::memcpy(all.data(), bytes.data(), bytes.size().value());
    return ok();
  };
  const auto lists = exchange_lists(ranks, mine, exchange);
  ASSERT_TRUE(lists);
  ASSERT_EQ(lists->size(), ranks);
  EXPECT_EQ(lists->front(), mine);
  for (std::size_t rank = 1; rank < ranks; ++rank) EXPECT_TRUE((*lists)[rank].empty());
  EXPECT_LE(largest, (1_MiB).value() * 3 / 4);

  mine.clear();
  EXPECT_EQ(*exchange_lists(ranks, mine, exchange), std::vector<std::vector<std::uint64_t>>(ranks));
}

}  // namespace
}  // namespace penstock::zero
