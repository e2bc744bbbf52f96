#include <penstock/swap/policy/eviction_policy.hpp>

#include <gtest/gtest.h>
#include <vector>

namespace penstock::swap {
namespace {

const std::vector<EvictionCandidate> candidates = {
    {.tensor = tiers::TensorId{0}, .dirty = false, .last_use = 5, .next_use = 9},
    {.tensor = tiers::TensorId{1}, .dirty = true, .last_use = 1, .next_use = 12},
    {.tensor = tiers::TensorId{2}, .dirty = false, .last_use = 3, .next_use = 12},
};

TEST(EvictionPolicy, LruTakesTheOneUsedLongestAgo) {
  EXPECT_EQ(make_lru_policy()->choose(candidates), 1u);
}

TEST(EvictionPolicy, PlannedTakesTheOneUsedFurthestAheadAndOfEqualsTheClean) {
  EXPECT_EQ(make_planned_policy()->choose(candidates), 2u);
}

TEST(EvictionPolicy, ChoosesNothingFromNothing) {
  EXPECT_FALSE(make_lru_policy()->choose({}));
  EXPECT_FALSE(make_planned_policy()->choose({}));
}

}  // namespace
}  // namespace penstock::swap
