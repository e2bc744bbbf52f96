#include <penstock/tiers/store/tensor_store.hpp>

#include "kit/pattern.hpp"

#include <gtest/gtest.h>
#include <vector>

namespace penstock::tiers {
namespace {

class TensorStoreTest : public testing::Test {
 protected:
  Reservation range() { return budget_.reserve(4_KiB, Purpose::scratch).value(); }

  Ledger ledger_;
  MemoryBudget budget_{Tier::host, 64_KiB, ledger_};
  TensorStore store_;
  TensorId tensor_ = store_.add({.name = "t", .size = 4_KiB, .extent = Extent{.length = 4_KiB}});
};

TEST_F(TensorStoreTest, MakesTheModifiedCopyTheNewest) {
  store_.begin_overwrite(tensor_, Tier::host, range());
  store_.end_exclusive(tensor_, Tier::host);

  EXPECT_EQ(store_.copy(tensor_, Tier::host).state, CopyState::dirty);
  EXPECT_TRUE(store_.current(tensor_, Tier::host));
  EXPECT_FALSE(store_.current(tensor_, Tier::nvme));

  store_.begin_store(tensor_, Tier::host);
  store_.finish_store(tensor_, Tier::host, true);
  EXPECT_TRUE(store_.current(tensor_, Tier::nvme));

  store_.begin_exclusive(tensor_, Tier::host);
  store_.end_exclusive(tensor_, Tier::host);
  EXPECT_FALSE(store_.current(tensor_, Tier::nvme));
}

TEST_F(TensorStoreTest, KeepsAFailedStoreDirtyAndForgetsAFailedLoad) {
  store_.begin_overwrite(tensor_, Tier::host, range());
  store_.end_exclusive(tensor_, Tier::host);
  store_.begin_store(tensor_, Tier::host);
  store_.finish_store(tensor_, Tier::host, false);
  EXPECT_EQ(store_.copy(tensor_, Tier::host).state, CopyState::dirty);

  store_.begin_store(tensor_, Tier::host);
  store_.finish_store(tensor_, Tier::host, true);
  store_.drop(tensor_, Tier::host);
  store_.begin_load(tensor_, Tier::host, range());
  store_.finish_load(tensor_, Tier::host, false);
  EXPECT_EQ(store_.copy(tensor_, Tier::host).state, CopyState::absent);
  EXPECT_EQ(budget_.free(), 64_KiB);
}

TEST_F(TensorStoreTest, MakesNoVersionOfWhatNobodyWrote) {
  store_.begin_overwrite(tensor_, Tier::host, range());
  store_.cancel_exclusive(tensor_, Tier::host);
  EXPECT_EQ(store_.copy(tensor_, Tier::host).state, CopyState::absent);
  EXPECT_EQ(budget_.free(), 64_KiB);

  store_.begin_overwrite(tensor_, Tier::host, range());
  store_.end_exclusive(tensor_, Tier::host);
  store_.begin_store(tensor_, Tier::host);
  store_.finish_store(tensor_, Tier::host, true);
  store_.begin_exclusive(tensor_, Tier::host);
  store_.cancel_exclusive(tensor_, Tier::host);
  EXPECT_EQ(store_.copy(tensor_, Tier::host).state, CopyState::clean);
  EXPECT_EQ(store_.newest(tensor_), 1u);
}

TEST_F(TensorStoreTest, KeepsTheRangeThatATensorHasSettledInUntilItIsRemoved) {
  const TensorId stays = store_.add({.name = "stays", .size = 4_KiB});
  store_.settle(stays, Tier::host, range());
  const std::uint64_t place = store_.copy(stays, Tier::host).reservation.offset();
  for (int i = 0; i < 2; ++i) {
    store_.begin_overwrite(stays, Tier::host, {});
    store_.end_exclusive(stays, Tier::host);
    EXPECT_EQ(store_.copy(stays, Tier::host).reservation.offset(), place);
    store_.drop(stays, Tier::host, /*discard=*/true);
    EXPECT_EQ(store_.newest(stays), 0u);
    EXPECT_EQ(budget_.free(), 60_KiB);
  }

  EXPECT_EQ(store_.remove(stays).name, "stays");

  EXPECT_EQ(budget_.free(), 64_KiB);
  EXPECT_EQ(store_.tensor_count(), 1u);
  EXPECT_EQ(store_.add({.name = "next", .size = 8_KiB}), stays);  // the id is free again
  EXPECT_EQ(store_.newest(stays), 0u);
}

TEST_F(TensorStoreTest, ForgetsTheStoredCopyOfWhatIsDiscarded) {
  store_.begin_overwrite(tensor_, Tier::host, range());
  store_.end_exclusive(tensor_, Tier::host);
  store_.begin_store(tensor_, Tier::host);
  store_.finish_store(tensor_, Tier::host, true);
  store_.begin_exclusive(tensor_, Tier::host);
  store_.end_exclusive(tensor_, Tier::host);

  store_.drop(tensor_, Tier::host, /*discard=*/true);

  EXPECT_EQ(store_.newest(tensor_), 0u);
  EXPECT_EQ(store_.copy(tensor_, Tier::nvme).state, CopyState::absent);
}

TEST_F(TensorStoreTest, ChecksItsTransitions) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(store_.begin_store(tensor_, Tier::host), "check failed");
  EXPECT_DEATH(store_.add_reader(tensor_, Tier::host), "check failed");
  store_.begin_overwrite(tensor_, Tier::host, range());
  EXPECT_DEATH(store_.begin_overwrite(tensor_, Tier::host, range()), "check failed");
  EXPECT_DEATH(store_.drop(tensor_, Tier::host, true), "check failed");
}

TEST(BlockTable, CatchesFlippedSwappedStaleAndForeignBytes) {
  std::vector<std::byte> payload(10'000);
  const HostSpan bytes{std::span(payload)};
  test::Pattern{.tensor = 1}.fill(bytes);
  BlockTable table(1, bytes.size(), 4_KiB), other(2, bytes.size(), 4_KiB);
  EXPECT_EQ(table.block_count(), 3u);
  EXPECT_EQ(table.first_mismatch(bytes), 0u);  // never sealed

  table.seal_all(bytes, 5);
  other.seal_all(bytes, 5);

  EXPECT_FALSE(table.first_mismatch(bytes));
  EXPECT_EQ(table.record(2).step, 5u);
  EXPECT_NE(table.record(0).hash, other.record(0).hash);
  payload[9'999] ^= std::byte{1};
  EXPECT_EQ(table.first_mismatch(bytes), 2u);
  payload[9'999] ^= std::byte{1};
  EXPECT_FALSE(table.verify(0, bytes.subspan(4_KiB, 4_KiB)));
}

}  // namespace
}  // namespace penstock::tiers
