#include "swap/policy/eviction_policy.hpp"

#include <gtest/gtest.h>
#include <array>
#include <vector>

namespace penstock::swap {
namespace {

using tiers::TensorId;

/// The order in which `policy` evicts tensors 0, 1 and 2.
std::vector<TensorId> order(Eviction policy, const std::array<EvictionCandidate, 3>& candidates) {
  EvictionOrder all(policy);
  for (std::uint32_t i = 0; i < 3; ++i) all.update(TensorId(i), candidates[i]);
  std::vector<TensorId> evicted;
  while (const auto first = all.first()) {
    evicted.push_back(*first);
    all.update(*first, std::nullopt);
  }
  return evicted;
}

constexpr std::array<EvictionCandidate, 3> candidates = {{
    {.dirty = false, .last_use = 5, .next_use = 9},
    {.dirty = true, .last_use = 1, .next_use = 12},
    {.dirty = false, .last_use = 3, .next_use = 12},
}};

TEST(EvictionOrder, OfLruBeginsWithTheOneUsedLongestAgo) {
  EXPECT_EQ(order(Eviction::lru, candidates), (std::vector{TensorId(1), TensorId(2), TensorId(0)}));
}

TEST(EvictionOrder, OfPlannedBeginsWithTheOneUsedFurthestAheadAndOfEqualsTheClean) {
  EXPECT_EQ(order(Eviction::planned, candidates), (std::vector{TensorId(2), TensorId(1), TensorId(0)}));
}

TEST(EvictionOrder, OfPlannedIsThatOfLruBeforeTheFutureIsKnown) {
  EXPECT_EQ(order(Eviction::planned, {{{.last_use = 5}, {.last_use = 1}, {.last_use = 3}}}),
            (std::vector{TensorId(1), TensorId(2), TensorId(0)}));
}

TEST(EvictionOrder, FindsTheFirstCleanOneThatIsUsedLateEnough) {
  for (const Eviction policy : {Eviction::lru, Eviction::planned}) {
    EvictionOrder all(policy);
    for (std::uint32_t i = 0; i < 3; ++i) all.update(TensorId(i), candidates[i]);

    EXPECT_EQ(all.first_clean_used_from(10), TensorId(2));
    EXPECT_FALSE(all.first_clean_used_from(13));
    all.update(TensorId(2), std::nullopt);
    EXPECT_EQ(all.first_clean_used_from(9), TensorId(0));
    EXPECT_FALSE(all.first_clean_used_from(10));  // the one left that is used then is dirty
  }
}

TEST(EvictionOrder, FollowsWhatBecomesOfACandidate) {
  EvictionOrder all(Eviction::planned);
  for (std::uint32_t i = 0; i < 3; ++i) all.update(TensorId(i), candidates[i]);

  all.update(TensorId(0), EvictionCandidate{.dirty = true, .last_use = 6, .next_use = 20});

  EXPECT_EQ(all.first(), TensorId(0));
  EXPECT_FALSE(EvictionOrder(Eviction::lru).first());
}

}  // namespace
}  // namespace penstock::swap
