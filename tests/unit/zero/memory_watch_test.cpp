#include "zero/memory_watch.hpp"

#include <gtest/gtest.h>

namespace penstock::zero {
namespace {

TEST(MemoryWatch, UsesLessWhereTheReserveIsNotAvailable) {
  const MemoryWatch watch{.reserve = 100_MiB, .least = 64_MiB, .budget = 512_MiB};
  EXPECT_EQ(watch.next(512_MiB, 100_MiB), 512_MiB);
  EXPECT_EQ(watch.next(512_MiB, 90_MiB), 502_MiB);
  EXPECT_EQ(watch.next(512_MiB, 90_MiB + 1_B), 502_MiB);  // whole pages
  EXPECT_EQ(watch.next(512_MiB, 0_B), 412_MiB);
  EXPECT_EQ(watch.next(100_MiB, 0_B), 64_MiB);
  EXPECT_EQ(watch.next(64_MiB, 0_B), 64_MiB);
}

TEST(MemoryWatch, DividesWhatIsMissingBetweenTheRanks) {
  const MemoryWatch watch{.reserve = 100_MiB, .least = 64_MiB, .budget = 512_MiB, .ranks = 5};
  EXPECT_EQ(watch.next(512_MiB, 0_B), 492_MiB);
  EXPECT_EQ(watch.next(300_MiB, 100_MiB + 132_MiB), 320_MiB);  // a fifth of 100 MiB
}

TEST(MemoryWatch, UsesMoreAgainOnceThereIsAnEighthOfTheBudgetBeyondTheReserve) {
  const MemoryWatch watch{.reserve = 100_MiB, .least = 64_MiB, .budget = 512_MiB};
  EXPECT_EQ(watch.next(256_MiB, 164_MiB), 256_MiB);
  EXPECT_EQ(watch.next(256_MiB, 166_MiB), 290_MiB);  // 66 MiB but 32
  EXPECT_EQ(watch.next(256_MiB, 10'000_MiB), 512_MiB);
  EXPECT_EQ(watch.next(512_MiB, 10'000_MiB), 512_MiB);
}

}  // namespace
}  // namespace penstock::zero
