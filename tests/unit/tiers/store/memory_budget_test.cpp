#include "tiers/store/memory_budget.hpp"

#include <gtest/gtest.h>
#include <cstdint>
#include <utility>
#include <vector>

namespace penstock::tiers {
namespace {

TEST(MemoryBudget, AllocatesAndFreesRanges) {
  Ledger ledger;
  MemoryBudget budget(Tier::host, 64_KiB, ledger);
  {
    Reservation first = budget.reserve(5000_B, Purpose::parameter_shard).value();
    Reservation moved = std::move(first);
    EXPECT_FALSE(first.held());
    EXPECT_EQ(moved.size(), 5000_B);
    EXPECT_EQ(budget.free(), 56_KiB);
  }

  EXPECT_EQ(budget.free(), 64_KiB);
  EXPECT_EQ(ledger.line(Tier::host, Purpose::parameter_shard).held, 0_B);
  EXPECT_EQ(ledger.line(Tier::host, Purpose::parameter_shard).peak, 8_KiB);
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> free_beyond(const MemoryBudget& budget) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& range : budget.free_beyond()) ranges.emplace_back(range.begin, range.length);
  return ranges;
}

TEST(MemoryBudget, AllocatesNothingBeyondItsLimit) {
  Ledger ledger;
  MemoryBudget budget(Tier::host, 64_KiB, ledger);
  using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  auto low = budget.reserve(8_KiB, Purpose::staging).value();
  auto across = budget.reserve(16_KiB, Purpose::staging).value();  // 8 to 24 KiB
  auto high = budget.reserve(8_KiB, Purpose::staging, RangeAllocator::End::high).value();

  budget.limit(16_KiB);

  EXPECT_EQ(budget.free(), 0_B);
  EXPECT_EQ(free_beyond(budget), (Ranges{{24 << 10, 32 << 10}}));
  EXPECT_FALSE(budget.reserve(4_KiB, Purpose::staging));
  high = {};
  EXPECT_EQ(free_beyond(budget), (Ranges{{24 << 10, 40 << 10}}));
  EXPECT_FALSE(budget.reserve(4_KiB, Purpose::staging));
  across = {};
  EXPECT_EQ(free_beyond(budget), (Ranges{{16 << 10, 48 << 10}}));
  EXPECT_EQ(budget.free(), 8_KiB);
  across = budget.reserve(8_KiB, Purpose::staging).value();
  EXPECT_EQ(across.offset(), 8u << 10);

  budget.limit(32_KiB);
  EXPECT_EQ(budget.free(), 16_KiB);
  EXPECT_EQ(free_beyond(budget), (Ranges{{32 << 10, 32 << 10}}));
  budget.limit(64_KiB);
  EXPECT_EQ(budget.free(), 48_KiB);
  EXPECT_TRUE(free_beyond(budget).empty());
  EXPECT_TRUE(budget.reserve(48_KiB, Purpose::staging));
}

TEST(MemoryBudget, NamesTheLimitAndWhatIsParked) {
  Ledger ledger;
  MemoryBudget budget(Tier::host, 64_KiB, ledger);
  budget.limit(32_KiB);
  EXPECT_STREQ(budget.raisable(), "the limit of the memory");
  std::string message = budget.too_small(48_KiB).message();
  for (const char* said : {"the host budget of 64.0 KiB, limited to 32.0 KiB, is too small",
                           "try     raise the limit of the memory, or use smaller units"})
    EXPECT_NE(message.find(said), std::string::npos) << said << " in\n" << message;
  budget.limit(64_KiB);
  EXPECT_STREQ(budget.raisable(), "the budget");
  const auto parked = budget.reserve(60_KiB, Purpose::parked);
  message = budget.too_small(48_KiB).message();
  EXPECT_NE(message.find("try     bring back what is parked, or raise the budget"), std::string::npos)
      << message;
}

TEST(MemoryBudget, NamesEveryHolderWhenItIsTooSmall) {
  Ledger ledger;
  MemoryBudget budget(Tier::host, 64_KiB, ledger);
  auto tiles = budget.reserve(40_KiB, Purpose::optimizer_tile).value();
  auto shard = budget.reserve(8_KiB, Purpose::parameter_shard).value();

  ASSERT_FALSE(budget.reserve(20_KiB, Purpose::gradient_shard));
  const Error error = budget.too_small(20_KiB);

  EXPECT_EQ(error.code(), ErrorCode::budget_too_small);
  EXPECT_EQ(error.message(),
            "the host budget of 64.0 KiB is too small, wanted 20.0 KiB (20480 B), got 16.0 KiB (16384 B) "
            "free, longest "
            "range 16.0 KiB (16384 B) [MemoryBudget::reserve]\n"
            "  holds   parameter shards 8.0 KiB\n"
            "  holds   optimizer tiles 40.0 KiB\n"
            "  try     raise the budget, or use smaller units or tiles");
}

}  // namespace
}  // namespace penstock::tiers
