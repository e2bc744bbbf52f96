#include "swap/residency/host_residency.hpp"

#include "unit/swap/residency/residency_fixture.hpp"

#include <gtest/gtest.h>
#include <array>
#include <vector>

// Tensors with a place on disk whose home is memory.

namespace penstock::swap {
namespace {

using test::ResidencyFixture;
using tiers::CopyState;
using tiers::TensorId;

/// With room for 64 KiB.
class HomeInMemory : public testing::Test, protected ResidencyFixture {
 protected:
  HomeInMemory() : ResidencyFixture({}) {}
};

TEST_F(HomeInMemory, EvictsWhatIsThereOnlyWhenARequestStarves) {
  const auto home = [this] {
    const TensorId tensor = add(16_KiB, {.write_behind = true, .home_in_memory = true}).value();
    acquire(tensor, Access::overwrite);
    return tensor;
  };
  const TensorId first = home(), second = home();
  const TensorId other = dirty(16_KiB);
  EXPECT_TRUE(effects.empty());

  acquire(add(24_KiB, {.transient = true}, false).value(), Access::overwrite);  // evicts the dirty one

  EXPECT_FALSE(in_memory(other));
  EXPECT_TRUE(in_memory(first) && in_memory(second));
  EXPECT_EQ(tensors.copy(first).state, CopyState::dirty);
  acquire(first);
  const RequestId waits = request(add(40_KiB, {.transient = true}, false).value(), Access::overwrite);
  run();
  EXPECT_FALSE(residency.take(waits));
  EXPECT_TRUE(in_memory(first) && in_memory(second));

  EXPECT_TRUE(residency.fail_starved_request());  // stores it
  EXPECT_TRUE(in_memory(second));
  run();

  EXPECT_TRUE(residency.take(waits).value());
  EXPECT_TRUE(in_memory(first));
  EXPECT_FALSE(in_memory(second));
}

TEST_F(HomeInMemory, IsNoneWhileTheMemoryIsLimited) {
  const TensorId home = add(16_KiB, {.write_behind = true, .home_in_memory = true}).value(),
                 other = stored(16_KiB);
  acquire(home, Access::overwrite);
  EXPECT_EQ(tensors.copy(home).state, CopyState::dirty);

  residency.limit_memory(32_KiB);
  residency.advance();
  run();

  EXPECT_EQ(tensors.copy(home).state, CopyState::clean);
  acquire(home, Access::overwrite);
  run();
  EXPECT_EQ(tensors.copy(home).state, CopyState::clean);  // stored behind its lease
  acquire(other);
  acquire(add(16_KiB, {.transient = true}, false).value(), Access::overwrite);
  EXPECT_FALSE(in_memory(home));  // used longest ago

  residency.limit_memory(64_KiB);
  acquire(home, Access::overwrite);
  run();
  EXPECT_EQ(tensors.copy(home).state, CopyState::dirty);
}

TEST_F(HomeInMemory, IsTakenFromTheLastAddedByAsMuchAsALimitTakes) {
  std::vector<TensorId> homes;
  for (int i = 0; i < 4; ++i) {
    homes.push_back(add(8_KiB, {.write_behind = true, .home_in_memory = true}).value());
    acquire(homes.back(), Access::overwrite);
  }
  const auto is_home = [&](TensorId tensor) {  // nothing stores what changes there
    acquire(tensor, Access::overwrite);
    run();
    return tensors.copy(tensor).state == CopyState::dirty;
  };
  const auto all = [&] {
    std::array<bool, 4> are{};
    for (std::size_t i = 0; i < 4; ++i) are[i] = is_home(homes[i]);
    return are;
  };
  residency.limit_memory(52_KiB);  // 12 KiB less
  EXPECT_EQ(all(), (std::array{true, true, false, false}));
  residency.limit_memory(40_KiB);
  EXPECT_EQ(all(), (std::array{true, false, false, false}));
  residency.limit_memory(56_KiB);
  EXPECT_EQ(all(), (std::array{true, true, true, false}));

  const TensorId later = add(4_KiB, {.write_behind = true, .home_in_memory = true}).value();
  EXPECT_FALSE(is_home(later));
  residency.limit_memory(64_KiB);
  EXPECT_EQ(all(), (std::array{true, true, true, true}));
  EXPECT_TRUE(is_home(later));
}

TEST_F(HomeInMemory, GivesARangeAwayOnlyIfItsContentsAreStored) {
  const auto home = [this] {
    const TensorId tensor = add(16_KiB, {.write_behind = true, .home_in_memory = true}).value();
    acquire(tensor, Access::overwrite);
    return tensor;
  };
  const TensorId changed = home(), clean = home(), leased = home();
  residency.queue_store(clean);
  residency.queue_store(leased);
  run();
  lease(leased);

  EXPECT_FALSE(residency.vacate(changed));
  EXPECT_FALSE(residency.vacate(leased));
  {
    const auto range = residency.vacate(clean);
    ASSERT_TRUE(range);
    EXPECT_EQ(range->size(), 16_KiB);
    EXPECT_FALSE(in_memory(clean));
    EXPECT_EQ(drops, std::vector{clean});
    EXPECT_EQ(budget.free(), 16_KiB);  // the range is not
  }
  EXPECT_EQ(budget.free(), 32_KiB);
  residency.release(leased, Access::read);
  acquire(clean);  // is loaded
  EXPECT_TRUE(in_memory(clean));
}

TEST_F(HomeInMemory, StoresWhatIsThereWhenItIsAskedTo) {
  const auto home = [this](bool write_behind) {
    const TensorId tensor =
        add(8_KiB,
            {.purpose = tiers::Purpose::checkpoint, .write_behind = write_behind, .home_in_memory = true})
            .value();
    acquire(tensor, Access::overwrite);
    return tensor;
  };
  const TensorId behind = home(true), not_behind = home(false), other = dirty(8_KiB);

  EXPECT_EQ(residency.changed_homes(), std::vector{behind});
  EXPECT_TRUE(residency.ask_store(behind));
  EXPECT_FALSE(residency.all_stored());
  run();
  EXPECT_TRUE(residency.all_stored());
  EXPECT_FALSE(residency.is_asked(behind));
  EXPECT_FALSE(residency.ask_store(behind));

  EXPECT_EQ(tensors.copy(behind).state, CopyState::clean);
  EXPECT_EQ(tensors.copy(not_behind).state, CopyState::dirty);
  EXPECT_EQ(tensors.copy(other).state, CopyState::dirty);
}

TEST_F(HomeInMemory, IsStoredWithFewOthersAtATimeWhereItIsAskedTo) {
  std::vector<TensorId> homes;
  for (int i = 0; i < 7; ++i) {
    homes.push_back(add(4_KiB, {.write_behind = true, .home_in_memory = true}).value());
    acquire(homes.back(), Access::overwrite);
    residency.ask_store(homes.back());
  }
  residency.advance();
  EXPECT_EQ(effects.size(), 4u);
  finish(take_effect());
  residency.advance();
  EXPECT_EQ(effects.size(), 4u);
  run();
  for (const TensorId home : homes) EXPECT_EQ(tensors.copy(home).state, CopyState::clean);
}

TEST_F(HomeInMemory, StaysThereWhereAStoreFailsThatWasAskedFor) {
  const TensorId home = add(8_KiB, {.write_behind = true, .home_in_memory = true}).value();
  acquire(home, Access::overwrite);
  residency.ask_store(home);
  residency.advance();
  finish(take_effect(), Error(ErrorCode::io, "the test").reason("the disk is gone"));

  EXPECT_FALSE(residency.is_asked(home));
  EXPECT_FALSE(residency.take_store_error());  // which would end the calls of others
  EXPECT_TRUE(residency.all_stored());
  for (int caller = 0; caller < 2; ++caller) {
    const auto error = residency.asked_error(home);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::io);
  }
  EXPECT_EQ(tensors.copy(home).state, CopyState::dirty);

  residency.ask_store(home);
  EXPECT_FALSE(residency.asked_error(home));
  run();
  EXPECT_EQ(tensors.copy(home).state, CopyState::clean);
}

TEST_F(HomeInMemory, LeavesMemoryBeyondALimitWhenItWasUsedNext) {
  const auto home = [this](ByteCount size) {
    const TensorId tensor = add(size, {.write_behind = true, .home_in_memory = true}).value();
    acquire(tensor, Access::overwrite);
    return tensor;
  };
  const auto place = [this](TensorId tensor) { return tensors.copy(tensor).reservation.offset(); };
  acquire(stored(32_KiB));  // before the homes
  const TensorId kept = home(16_KiB), beyond = home(16_KiB);
  const ByteCount limit = 48_KiB;
  ASSERT_LE(ByteCount(place(kept)) + 16_KiB, limit);
  ASSERT_GT(ByteCount(place(beyond)) + 16_KiB, limit);

  lease(beyond, Access::modify);
  residency.limit_memory(limit);
  residency.release(beyond, Access::modify);
  run();
  EXPECT_FALSE(in_memory(beyond));  // it was stored, and has left

  residency.limit_memory(limit);
  acquire(beyond);
  EXPECT_LE(ByteCount(place(beyond)) + 16_KiB, limit);
}

TEST_F(HomeInMemory, IsNotLoadedAheadWhileItsRangeIsGivenAway) {
  const TensorId home = add(16_KiB, {.write_behind = true, .home_in_memory = true}).value();
  acquire(home, Access::overwrite);
  residency.ask_store(home);
  run();
  {
    const auto range = residency.vacate(home);
    ASSERT_TRUE(range);
    residency.prefetch(home);
    run();
    EXPECT_FALSE(in_memory(home));
  }
  residency.end_vacancy(home);
  residency.prefetch(home);
  run();
  EXPECT_TRUE(in_memory(home));
}

TEST_F(HomeInMemory, IsNoRoomForWhatIsReadAhead) {
  const TensorId home = add(40_KiB, {.home_in_memory = true}).value(), ahead = stored(32_KiB);
  acquire(home, Access::overwrite);
  residency.queue_store(home);
  run();
  ASSERT_EQ(tensors.copy(home).state, CopyState::clean);

  const TensorId other = add(16_KiB).value();
  acquire(other, Access::overwrite);
  residency.queue_store(other);
  run();

  residency.prefetch(ahead);
  residency.advance();

  EXPECT_TRUE(in_memory(home));
  EXPECT_TRUE(in_memory(other));  // would not be room enough
  EXPECT_TRUE(effects.empty());
}

}  // namespace
}  // namespace penstock::swap
