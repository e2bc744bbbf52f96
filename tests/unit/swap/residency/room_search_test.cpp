#include "swap/residency/room_search.hpp"

#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::swap {
namespace {

using tiers::MemoryBudget;
using tiers::Purpose;
using tiers::Reservation;
using tiers::TensorId;

constexpr ByteCount page = 4_KiB;

/// Memory with copies side by side, of so many pages; those of an empty name are free.
class RoomSearchTest : public testing::Test {
 protected:
  void fill(MemoryBudget::Ranges ranges,
            const std::vector<std::pair<std::optional<int>, std::uint64_t>>& parts) {
    ByteCount size;
    for (const auto& part : parts) size += page * part.second;
    budget_.emplace(tiers::Tier::host, size, ledger_, Alignment(4096), ranges);
    std::vector<Reservation> free;
    for (const auto& [tensor, pages] : parts) {
      auto range = budget_->reserve(page * pages, Purpose::staging).value();
      if (tensor)
        copies_.emplace_back(TensorId(static_cast<std::uint64_t>(*tensor)), std::move(range));
      else
        free.push_back(std::move(range));
    }
  }
  /// What leaves for so many pages, if these are the candidates.
  std::vector<int> found(std::uint64_t pages, const std::vector<int>& candidates) {
    RoomSearch search(*budget_);
    search.begin(page * pages);
    for (const int candidate : candidates) {
      const auto copy = std::find_if(copies_.begin(), copies_.end(), [&](const auto& one) {
        return one.first == TensorId(static_cast<std::uint64_t>(candidate));
      });
      if (search.add(copy->first, copy->second)) break;
    }
    std::vector<int> numbers;
    for (const TensorId tensor : search.found()) numbers.push_back(static_cast<int>(tensor));
    return numbers;
  }

  tiers::Ledger ledger_;
  std::optional<MemoryBudget> budget_;
  std::vector<std::pair<TensorId, Reservation>> copies_;
};

TEST_F(RoomSearchTest, EndsAtTheFirstGapThatIsLongEnough) {
  fill(MemoryBudget::Ranges::placed, {{0, 2}, {1, 1}, {std::nullopt, 1}, {2, 3}, {3, 1}});
  EXPECT_EQ(found(2, {1, 0, 2}), std::vector{1});       // with the free page behind it
  EXPECT_EQ(found(4, {2, 0}), std::vector{2});          // with the free page before it
  EXPECT_EQ(found(4, {0, 1, 2}), (std::vector{0, 1}));  // and the free page
  EXPECT_EQ(found(5, {1, 2}), (std::vector{1, 2}));     // around it
  EXPECT_EQ(found(5, {2, 1}), (std::vector{2, 1}));
  EXPECT_EQ(found(8, {0, 3, 2, 1}), (std::vector{0, 3, 2, 1}));
}

TEST_F(RoomSearchTest, FindsNothingWhereAllCandidatesLeaveNoGap) {
  fill(MemoryBudget::Ranges::placed, {{0, 2}, {1, 1}, {2, 2}});
  EXPECT_EQ(found(3, {0, 2}), std::vector<int>{});  // 1 stays between them
  EXPECT_EQ(found(6, {0, 1, 2}), std::vector<int>{});
}

TEST_F(RoomSearchTest, OnlyCountsBytesWhereThereAreNoPlaces) {
  fill(MemoryBudget::Ranges::counted, {{0, 2}, {1, 1}, {2, 2}, {std::nullopt, 1}});
  EXPECT_EQ(found(5, {0, 2, 1}), (std::vector{0, 2}));
  EXPECT_EQ(found(7, {0, 2, 1}), std::vector<int>{});
}

// With copies leaving one after the other until the range can be reserved.
TEST_F(RoomSearchTest, FindsWhatMakesRoomForAReservation) {
  penstock::test::SeededRandom random(3);
  std::size_t none = 0, several = 0;
  for (int run = 0; run < 500; ++run) {
    copies_.clear();
    std::vector<std::pair<std::optional<int>, std::uint64_t>> parts;
    for (int i = 0; i < 12; ++i)
      parts.emplace_back(random.below(4) == 0 ? std::nullopt : std::optional(i), 1 + random.below(3));
    fill(MemoryBudget::Ranges::placed, parts);
    std::vector<int> candidates;
    for (const auto& [tensor, range] : copies_)
      if (random.below(4) != 0) candidates.push_back(static_cast<int>(tensor));
    for (std::size_t i = candidates.size(); i > 1; --i)
      std::swap(candidates[i - 1], candidates[random.below(i)]);
    const std::uint64_t pages = 1 + random.below(14);
    if (budget_->reserve(page * pages, Purpose::staging)) continue;

    const std::vector<int> leave = found(pages, candidates);

    std::vector<int> left;
    for (const int candidate : candidates) {
      left.push_back(candidate);
      std::erase_if(copies_, [&](const auto& one) {
        return one.first == TensorId(static_cast<std::uint64_t>(candidate));
      });
      if (budget_->reserve(page * pages, Purpose::staging)) break;
    }
    if (!budget_->reserve(page * pages, Purpose::staging)) left.clear();
    ASSERT_EQ(leave, left) << "run " << run;
    if (leave.empty()) ++none;
    if (leave.size() > 1) ++several;
  }
  EXPECT_GT(none, 20u);
  EXPECT_GT(several, 20u);
}

}  // namespace
}  // namespace penstock::swap
