#include "swap/policy/eviction_policy.hpp"

#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <array>
#include <optional>
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

TEST(EvictionOrder, EndsWithThoseAtHomeInMemoryByTheRankOfThePolicy) {
  const std::array<EvictionCandidate, 3> homes = {{
      {.home_in_memory = true, .last_use = 1, .next_use = 12},
      {.dirty = true, .last_use = 9, .next_use = 3},
      {.home_in_memory = true, .last_use = 2, .next_use = 20},
  }};
  EXPECT_EQ(order(Eviction::lru, homes), (std::vector{TensorId(1), TensorId(0), TensorId(2)}));
  EXPECT_EQ(order(Eviction::planned, homes), (std::vector{TensorId(1), TensorId(2), TensorId(0)}));
}

TEST(EvictionOrder, FindsTheCleanOneThatIsUsedFurthestAheadIfThatIsLateEnough) {
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

TEST(EvictionOrder, FindsTheSameCandidatesAsASearchOfAll) {
  constexpr std::uint32_t tensors = 40, positions = 12;
  for (const Eviction policy : {Eviction::lru, Eviction::planned}) {
    penstock::test::SeededRandom random(7);
    EvictionOrder all(policy);
    std::array<std::optional<EvictionCandidate>, tensors> model;
    /// The first candidate of the model that `accepts`, by its rank in `order` and then by number.
    const auto first = [&](Eviction order, const auto& accepts) {
      std::optional<TensorId> found;
      for (std::uint32_t i = 0; i < tensors; ++i) {
        if (!model.at(i) || !accepts(*model.at(i))) continue;
        const auto rank = [&](TensorId tensor) {
          return eviction_rank(order, *model.at(static_cast<std::size_t>(tensor)));
        };
        if (!found || rank(TensorId(i)) < rank(*found)) found = TensorId(i);
      }
      return found;
    };
    for (int change = 0; change < 2000; ++change) {
      const auto tensor = static_cast<std::uint32_t>(random.below(tensors));
      auto& candidate = model.at(tensor);
      candidate.reset();
      if (random.below(4) != 0) {
        candidate = {.home_in_memory = random.below(4) == 0,
                     .dirty = random.below(2) == 0,
                     .last_use = random.below(positions),
                     .next_use = random.below(3) == 0 ? NextUses::never : random.below(positions)};
      }
      all.update(TensorId(tensor), candidate);

      const std::uint64_t from = random.below(positions + 2);
      ASSERT_EQ(all.first(), first(policy, [](const EvictionCandidate&) { return true; }));
      ASSERT_EQ(all.first_clean_used_from(from), first(Eviction::planned, [&](const EvictionCandidate& one) {
                  return !one.home_in_memory && !one.dirty && one.next_use >= from;
                }));
    }
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
