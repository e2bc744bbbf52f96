#include "tiers/store/range_allocator.hpp"

#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <vector>

namespace penstock::tiers {
namespace {

TEST(RangeAllocator, PutsLongLivedRangesLowAndShortLivedOnesHigh) {
  RangeAllocator ranges(1024, 16);

  EXPECT_EQ(ranges.allocate(10)->begin, 0u);
  EXPECT_EQ(ranges.allocate(10, RangeAllocator::End::high)->begin, 1008u);
  EXPECT_EQ(ranges.free_total(), 992u);
  EXPECT_FALSE(ranges.allocate(993));
  EXPECT_FALSE(ranges.allocate(~0ull));
}

TEST(RangeAllocator, AllocatesNoRangeThatIsMisalignedOrBeyondItsEnd) {
  RangeAllocator ranges(1024, 16);

  EXPECT_FALSE(ranges.allocate_at({0, 0}));
  EXPECT_FALSE(ranges.allocate_at({8, 16}));
  EXPECT_FALSE(ranges.allocate_at({16, 24}));
  EXPECT_FALSE(ranges.allocate_at({1024, 16}));
  EXPECT_FALSE(ranges.allocate_at({1008, ~0ull - 15}));
  EXPECT_EQ(ranges.free_total(), 1024u);
}

TEST(RangeAllocator, AllocatesWithinAPartOfAGap) {
  RangeAllocator ranges(1024, 16);
  ASSERT_TRUE(ranges.allocate_at({64, 16}));  // gaps of 64 and of 944

  EXPECT_EQ(ranges.allocate_within(32, 32, 160)->begin, 32u);  // 32 of the first gap, 80 of the other
  EXPECT_EQ(ranges.allocate_within(32, 32, 160)->begin, 80u);
  EXPECT_FALSE(ranges.allocate_within(64, 32, 160));
  EXPECT_EQ(ranges.allocate_within(60, 112, 176)->begin, 112u);
  EXPECT_FALSE(ranges.allocate_within(16, 1024, 1024));
  EXPECT_FALSE(ranges.allocate_within(~0ull, 0, 1024));
  EXPECT_EQ(ranges.free_total(), 1024u - 16 - 32 - 32 - 64);
}

TEST(RangeAllocator, AgreesWithAModelOverRandomCalls) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    test::SeededRandom random(seed);
    RangeAllocator ranges(64 * 16, 16);
    std::vector<bool> owned(64, false);  // by granule
    std::vector<RangeAllocator::Range> live;
    for (int i = 0; i < 400; ++i) {
      if (random.below(8) == 0) {
        const RangeAllocator::Range wanted{random.below(70) * 16, (1 + random.below(8)) * 16};
        bool is_free = wanted.begin + wanted.length <= ranges.size();
        for (auto g = wanted.begin / 16; is_free && g < (wanted.begin + wanted.length) / 16; ++g)
          is_free = !owned[g];
        ASSERT_EQ(ranges.allocate_at(wanted), is_free);
        if (!is_free) continue;
        for (auto g = wanted.begin / 16; g < (wanted.begin + wanted.length) / 16; ++g) owned[g] = true;
        live.push_back(wanted);
      } else if (live.empty() || random.below(2) == 0) {
        const auto end = random.below(2) == 0 ? RangeAllocator::End::low : RangeAllocator::End::high;
        const std::uint64_t wanted = 1 + random.below(200);
        std::uint64_t longest = 0, run = 0;
        for (const bool used : owned) longest = std::max(longest, run = used ? 0 : run + 1);
        const auto range = ranges.allocate(wanted, end);
        ASSERT_EQ(range.has_value(), (wanted + 15) / 16 <= longest);
        if (!range) continue;
        ASSERT_GE(range->length, wanted);
        for (auto g = range->begin / 16; g < (range->begin + range->length) / 16; ++g) {
          ASSERT_FALSE(owned[g]);
          owned[g] = true;
        }
        live.push_back(*range);
      } else {
        std::swap(live[random.below(live.size())], live.back());
        for (auto g = live.back().begin / 16; g < (live.back().begin + live.back().length) / 16; ++g)
          owned[g] = false;
        ranges.release(live.back());
        live.pop_back();
      }
      if (live.empty()) continue;
      const RangeAllocator::Range& one = live[random.below(live.size())];
      std::uint64_t before = one.begin / 16, after = (one.begin + one.length) / 16;
      while (before > 0 && !owned[before - 1]) --before;
      while (after < owned.size() && !owned[after]) ++after;
      ASSERT_EQ(ranges.free_beside(one),
                std::pair(one.begin - before * 16, after * 16 - one.begin - one.length));
    }
    for (const auto& range : live) ranges.release(range);
    EXPECT_EQ(ranges.largest_gap(), ranges.size());
  }
}

}  // namespace
}  // namespace penstock::tiers
