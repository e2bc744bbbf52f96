#include "tiers/store/tensor_store.hpp"

#include "kit/pattern.hpp"

#include <gtest/gtest.h>
#include <set>
#include <vector>

namespace penstock::tiers {
namespace {

class TensorStoreTest : public testing::Test {
 protected:
  Reservation range() { return budget_.reserve(4_KiB, Purpose::scratch).value(); }

  Ledger ledger_;
  MemoryBudget budget_{Tier::host, 64_KiB, ledger_};
  TensorStore store_;
  TensorId tensor_ = store_.add({.name = "t", .size = 4_KiB, .extent = Extent{.length = 4_KiB}}).value();
};

TEST_F(TensorStoreTest, MakesTheModifiedCopyTheNewest) {
  store_.begin_overwrite(tensor_, range());
  store_.end_exclusive(tensor_);

  EXPECT_EQ(store_.copy(tensor_).state, CopyState::dirty);
  EXPECT_FALSE(store_.stored(tensor_));

  store_.begin_store(tensor_);
  store_.finish_store(tensor_, true);
  EXPECT_TRUE(store_.stored(tensor_));

  store_.begin_exclusive(tensor_);
  store_.end_exclusive(tensor_);
  EXPECT_FALSE(store_.stored(tensor_));
}

TEST_F(TensorStoreTest, KeepsAFailedStoreDirtyAndForgetsAFailedLoad) {
  store_.begin_overwrite(tensor_, range());
  store_.end_exclusive(tensor_);
  store_.begin_store(tensor_);
  store_.finish_store(tensor_, false);
  EXPECT_EQ(store_.copy(tensor_).state, CopyState::dirty);

  store_.begin_store(tensor_);
  store_.finish_store(tensor_, true);
  store_.drop(tensor_);
  store_.begin_load(tensor_, range());
  store_.finish_load(tensor_, false);
  EXPECT_EQ(store_.copy(tensor_).state, CopyState::absent);
  EXPECT_EQ(budget_.free(), 64_KiB);
}

TEST_F(TensorStoreTest, MakesNoVersionOfAnUnwrittenTensor) {
  store_.begin_overwrite(tensor_, range());
  store_.cancel_exclusive(tensor_);
  EXPECT_EQ(store_.copy(tensor_).state, CopyState::absent);
  EXPECT_EQ(budget_.free(), 64_KiB);

  store_.begin_overwrite(tensor_, range());
  store_.end_exclusive(tensor_);
  store_.begin_store(tensor_);
  store_.finish_store(tensor_, true);
  store_.begin_exclusive(tensor_);
  store_.cancel_exclusive(tensor_);
  EXPECT_EQ(store_.copy(tensor_).state, CopyState::clean);
  EXPECT_EQ(store_.copy(tensor_).version, 1u);
}

TEST_F(TensorStoreTest, KeepsAPinnedRangeUntilTheTensorIsRemoved) {
  const TensorId stays = store_.add({.name = "stays", .key = {.unit = 1}, .size = 4_KiB}).value();
  store_.pin_range(stays, range());
  const std::uint64_t place = store_.copy(stays).reservation.offset();
  for (int i = 0; i < 2; ++i) {
    store_.begin_overwrite(stays, {});
    store_.end_exclusive(stays);
    EXPECT_EQ(store_.copy(stays).reservation.offset(), place);
    store_.discard(stays);
    EXPECT_EQ(store_.copy(stays).version, 0u);
    EXPECT_EQ(budget_.free(), 60_KiB);
  }

  EXPECT_EQ(store_.remove(stays).name, "stays");

  EXPECT_EQ(budget_.free(), 64_KiB);
  EXPECT_EQ(store_.tensors().size(), 1u);
  const TensorId next = store_.add({.name = "next", .key = {.unit = 1}, .size = 8_KiB}).value();
  EXPECT_NE(next, stays);
  EXPECT_FALSE(store_.contains(stays));
  EXPECT_TRUE(store_.contains(next));
  EXPECT_FALSE(store_.stored(next));
}

TEST_F(TensorStoreTest, DropsTheStoredCopyOfADiscardedTensor) {
  store_.begin_overwrite(tensor_, range());
  store_.end_exclusive(tensor_);
  store_.begin_store(tensor_);
  store_.finish_store(tensor_, true);
  store_.begin_exclusive(tensor_);
  store_.end_exclusive(tensor_);

  store_.discard(tensor_);

  EXPECT_FALSE(store_.stored(tensor_));
  EXPECT_EQ(store_.copy(tensor_).state, CopyState::absent);
}

TEST_F(TensorStoreTest, ChecksItsTransitions) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(store_.begin_store(tensor_), "check failed");
  EXPECT_DEATH(store_.add_reader(tensor_), "check failed");
  store_.begin_overwrite(tensor_, range());
  EXPECT_DEATH(store_.begin_overwrite(tensor_, range()), "check failed");
  EXPECT_DEATH(store_.discard(tensor_), "check failed");
}

TEST_F(TensorStoreTest, RefusesAKeyThatAnotherTensorHasUntilThatIsRemoved) {
  const TensorDescription same{.name = "same", .size = 4_KiB};
  const auto refused = store_.add(same);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::already_exists);
  for (const char* const words : {"tensor t has the same key",
                                  "try     give each engine on a runtime its own "
                                  "Engine::Options::engine_number"}) {
    EXPECT_NE(refused.error().message().find(words), std::string::npos) << refused.error().message();
  }

  (void)store_.remove(tensor_);

  EXPECT_TRUE(store_.add(same));
}

TEST_F(TensorStoreTest, GivesNoIdTwiceAlsoInAnotherStore) {
  TensorStore other;
  std::set<TensorId> ids = {tensor_};
  std::vector<TensorId> last = {tensor_};
  for (int i = 0; i < 70'000; ++i) {  // a place counts fewer tensors
    (void)store_.remove(last.back());
    last = {other.add({.name = "other", .size = 4_KiB}).value(),
            store_.add({.name = "t", .size = 4_KiB}).value()};
    for (const TensorId id : last) ASSERT_TRUE(ids.insert(id).second) << i;
    ASSERT_FALSE(other.contains(last.back()) || store_.contains(last.front()));
    (void)other.remove(last.front());
  }
}

TEST_F(TensorStoreTest, RefusesATensorWithoutBytes) {
  EXPECT_EQ(store_.add({.name = "empty", .key = {.unit = 1}}).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(store_.add({.name = "no block", .key = {.unit = 1}, .size = 1_B, .block = 0_B}).error().code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(store_.tensors().size(), 1u);
}

TEST(TensorKey, SeedsDifferWhereAnyFieldDoes) {
  const TensorKey key{
      .owner = 1, .unit = 2, .group = 3, .role = Purpose::optimizer_tile, .first = 4, .count = 5};
  std::set<std::uint64_t> seeds = {key.seed()};
  for (TensorKey other : {key, key, key, key, key, key}) {
    switch (seeds.size()) {
      case 1: other.owner = 2; break;
      case 2: other.unit = 1; break;
      case 3: other.group = 1; break;
      case 4: other.role = Purpose::gradient_shard; break;
      case 5: other.first = 5; break;
      default: other.count = 4; break;
    }
    EXPECT_TRUE(seeds.insert(other.seed()).second) << to_string(other);
  }
  EXPECT_EQ(key.seed(), 10979171836248988348u);  // it reaches disk: never another
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

TEST(TensorDescription, StaysInMemoryWhereItHasNoExtentAndItsContentsOutlastALease) {
  EXPECT_TRUE(TensorDescription{}.stays_in_memory());
  EXPECT_FALSE(TensorDescription{.extent = Extent{}}.stays_in_memory());
  EXPECT_FALSE(TensorDescription{.transient = true}.stays_in_memory());
}

}  // namespace
}  // namespace penstock::tiers
