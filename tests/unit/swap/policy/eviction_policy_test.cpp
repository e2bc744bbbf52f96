#include "swap/policy/eviction_policy.hpp"

#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <vector>

namespace penstock::swap {
namespace {

using tiers::TensorId;

using Candidates = std::map<TensorId, EvictionCandidate>;

/// Walks through tensors as `walk` does.
template <class Walk>
std::vector<TensorId> visited(const Walk& walk) {
  std::vector<TensorId> tensors;
  EXPECT_TRUE(walk([&](TensorId tensor) {
    tensors.push_back(tensor);
    return true;
  }));
  return tensors;
}

std::vector<TensorId> order(Eviction policy, const Candidates& candidates, std::uint64_t position = 0) {
  EvictionOrder all(policy);
  for (const auto& [tensor, candidate] : candidates) all.update(tensor, candidate);
  auto tensors = visited([&](const auto& visit) { return all.walk(position, visit); });
  const auto homes = visited([&](const auto& visit) { return all.walk_homes(position, visit); });
  tensors.insert(tensors.end(), homes.begin(), homes.end());
  return tensors;
}

constexpr TensorId a{0}, b{1}, c{2}, d{3};

TEST(EvictionOrder, OfLruBeginsWithTheOneUsedLongestAgo) {
  const Candidates candidates = {{a, {.last_use = 5, .next_use = 9}},
                                 {b, {.dirty = true, .last_use = 1, .next_use = 2}},
                                 {c, {.last_use = 3, .next_use = 12}}};
  EXPECT_EQ(order(Eviction::lru, candidates), (std::vector{b, c, a}));
}

TEST(EvictionOrder, OfPlannedBeginsWithTheOneUsedFurthestAhead) {
  const Candidates candidates = {{a, {.next_use = 9}}, {b, {.next_use = 20}}, {c, {.next_use = 12}}};
  EXPECT_EQ(order(Eviction::planned, candidates), (std::vector{b, c, a}));
  EXPECT_EQ(
      order(Eviction::planned, {{a, {.dirty = true, .next_use = 9}}, {b, {.dirty = true, .next_use = 12}}}),
      (std::vector{b, a}));
}

TEST(EvictionOrder, OfPlannedIsThatOfLruBeforeTheFutureIsKnown) {
  EXPECT_EQ(order(Eviction::planned, {{a, {.last_use = 5}}, {b, {.last_use = 1}}, {c, {.last_use = 3}}}),
            (std::vector{b, c, a}));
}

TEST(EvictionOrder, OfPlannedWeighsTransfersAgainstTheTimeToTheNextUse) {
  EXPECT_EQ(cost_of_eviction({.next_use = 5}, {}), 1);
  EXPECT_EQ(cost_of_eviction({.dirty = true, .next_use = 5}, {}), 1.1);
  EXPECT_EQ(cost_of_eviction({.dirty = true, .is_read_next = false, .next_use = 5}, {}), 1);
  EXPECT_EQ(cost_of_eviction({.is_read_next = false, .next_use = 5}, {}), 0);
  EXPECT_EQ(cost_of_eviction({}, {}), 0);  // never used again
  // 1.1 / 21 is more than 1 / 20, and 1.1 / 23 less.
  const auto dirty_one_used_at = [](std::uint64_t use) {
    return Candidates{{a, {.next_use = 120}}, {b, {.dirty = true, .next_use = use}}};
  };
  EXPECT_EQ(order(Eviction::planned, dirty_one_used_at(121), 100), (std::vector{a, b}));
  EXPECT_EQ(order(Eviction::planned, dirty_one_used_at(123), 100), (std::vector{b, a}));
  // What costs nothing is first, what is asked for already last.
  EXPECT_EQ(order(Eviction::planned,
                  {{a, {.next_use = 0}},
                   {b, {.next_use = 900}},
                   {c, {.dirty = true, .next_use = 101}},
                   {d, {.is_read_next = false, .next_use = 101}}},
                  100),
            (std::vector{d, b, c, a}));
}

TEST(EvictionOrder, OfPlannedWeighsTheTimeThatPathsAndTheirWritesTake) {
  constexpr TransferCosts slow_writes{.read = 2, .write = 8};
  EXPECT_EQ(cost_of_eviction({.next_use = 5}, slow_writes), 2);
  EXPECT_EQ(cost_of_eviction({.dirty = true}, slow_writes), 8);
  EXPECT_EQ(cost_of_eviction({.dirty = true, .next_use = 5}, slow_writes), 8.2);
  const std::vector<TransferCosts> paths = {{}, slow_writes};
  EvictionOrder all(Eviction::planned, paths);
  all.update(a, EvictionCandidate{.path = 0, .next_use = 10});                 // 1 / 10
  all.update(b, EvictionCandidate{.path = 1, .next_use = 19});                 // 2 / 19
  all.update(c, EvictionCandidate{.path = 1, .dirty = true, .next_use = 20});  // 8.2 / 20
  all.update(d, EvictionCandidate{.path = 1, .next_use = 21});                 // 2 / 21
  EXPECT_EQ(visited([&](const auto& visit) { return all.walk(0, visit); }), (std::vector{d, a, b, c}));
}

TEST(EvictionOrder, EndsWithThoseAtHomeInMemoryByTheRankOfThePolicy) {
  const Candidates homes = {{a, {.home_in_memory = true, .last_use = 1, .next_use = 12}},
                            {b, {.dirty = true, .last_use = 9, .next_use = 3}},
                            {c, {.home_in_memory = true, .last_use = 2, .next_use = 20}}};
  EXPECT_EQ(order(Eviction::lru, homes), (std::vector{b, a, c}));
  EXPECT_EQ(order(Eviction::planned, homes), (std::vector{b, c, a}));
}

TEST(EvictionOrder, OfWhatIsReadAheadHasTheCleanOnesThatAreUsedLateEnough) {
  for (const Eviction policy : {Eviction::lru, Eviction::planned}) {
    EvictionOrder all(policy);
    all.update(a, EvictionCandidate{.last_use = 5, .next_use = 9});
    all.update(b, EvictionCandidate{.dirty = true, .next_use = 12});
    all.update(c, EvictionCandidate{.last_use = 3, .next_use = 12});
    all.update(d, EvictionCandidate{.home_in_memory = true, .next_use = 12});
    const auto from = [&](std::uint64_t position) {
      return visited([&](const auto& visit) { return all.walk_clean_used_from(position, visit); });
    };
    EXPECT_EQ(from(9), (std::vector{c, a}));
    EXPECT_EQ(from(10), std::vector{c});
    EXPECT_EQ(from(13), std::vector<TensorId>{});
  }
}

TEST(EvictionOrder, EndsAWalkWhereTheVisitorDoes) {
  EvictionOrder all(Eviction::planned);
  for (const TensorId tensor : {a, b, c}) all.update(tensor, EvictionCandidate{});
  std::size_t visits = 0;
  const auto second_ends_it = [&](TensorId) { return ++visits < 2; };
  EXPECT_FALSE(all.walk(0, second_ends_it));
  EXPECT_EQ(visits, 2u);
  EXPECT_FALSE(all.walk_clean_used_from(0, second_ends_it));
}

// Against a sort of all candidates by the cost that the class states, and by last use.
TEST(EvictionOrder, IsThatOfASortOfAll) {
  constexpr std::uint32_t tensors = 40, positions = 12;
  for (const Eviction policy : {Eviction::lru, Eviction::planned}) {
    penstock::test::SeededRandom random(7);
    const std::vector<TransferCosts> paths = {{}, {.read = 3, .write = 3}, {.read = 2, .write = 5}};
    EvictionOrder all(policy, paths);
    Candidates model;
    for (int change = 0; change < 2000; ++change) {
      const TensorId tensor{random.below(tensors)};
      model.erase(tensor);
      if (random.below(4) != 0) {
        model[tensor] = {.size = ByteCount(random.below(100)),
                         .path = static_cast<std::uint32_t>(random.below(3)),
                         .home_in_memory = random.below(4) == 0,
                         .dirty = random.below(2) == 0,
                         .is_read_next = random.below(3) != 0,
                         .last_use = random.below(1000),
                         .next_use = random.below(3) == 0 ? NextUses::never : 1 + random.below(positions)};
      }
      all.update(tensor, model.contains(tensor) ? std::optional(model[tensor]) : std::nullopt);
      ByteCount size, size_of_homes;
      for (const auto& [one, candidate] : model)
        (candidate.home_in_memory ? size_of_homes : size) += candidate.size;
      ASSERT_EQ(all.size(), size);
      ASSERT_EQ(all.size_of_homes(), size_of_homes);
      if (change % 20 != 0) continue;
      const auto cost = [&](TensorId one) {
        const EvictionCandidate& candidate = model.at(one);
        if (policy == Eviction::lru) return static_cast<double>(candidate.last_use);
        return cost_of_eviction(candidate, paths[candidate.path]) / static_cast<double>(candidate.next_use);
      };
      const auto walked = visited([&](const auto& visit) { return all.walk(0, visit); });
      const auto homes = visited([&](const auto& visit) { return all.walk_homes(0, visit); });
      for (const auto* one : {&walked, &homes}) {
        ASSERT_TRUE(std::is_sorted(one->begin(), one->end(),
                                   [&](TensorId x, TensorId y) { return cost(x) < cost(y); }));
      }
      ASSERT_EQ(walked.size() + homes.size(), model.size());
      for (const TensorId one : homes) ASSERT_TRUE(model.at(one).home_in_memory);
    }
  }
}

}  // namespace
}  // namespace penstock::swap
