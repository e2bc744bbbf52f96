#include "tiers/store/memory_budget.hpp"

#include <gtest/gtest.h>

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
