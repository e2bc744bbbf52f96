#include "unit/swap/residency/read_ahead_fixture.hpp"

#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <vector>

// What is read ahead, and into which room.

namespace penstock::swap {
namespace {

using test::ReadAhead;
using test::ResidencyFixture;
using tiers::TensorId;

TEST_F(ReadAhead, EndsOnceTheTensorIsRequested) {
  const TensorId held = add(32_KiB).value(), large = stored(40_KiB), tensor = stored(24_KiB),
                 other = stored(24_KiB);
  lease(held, Access::overwrite);
  acquire(other);
  residency.prefetch(large);   // finds no room
  residency.prefetch(tensor);  // waits behind it
  acquire(tensor);
  acquire(other);
  ASSERT_FALSE(in_memory(tensor));

  residency.release(held, Access::overwrite);
  remove(held);
  remove(other);
  run();

  EXPECT_TRUE(in_memory(large));
  EXPECT_FALSE(in_memory(tensor));
}

TEST_F(ReadAhead, GivesRoomInTheOrderOfUse) {
  const TensorId now = stored(4_KiB, false), next = stored(40_KiB, false), last = stored(40_KiB, false);
  rehearse({now, next, last});
  lease(now, Access::read, Use::recorded);

  residency.prefetch(last);
  residency.prefetch(next);
  run();

  EXPECT_TRUE(in_memory(next));
  EXPECT_FALSE(in_memory(last));
}

TEST_F(ReadAhead, LeavesRoomForAllThatIsUsedSooner) {
  const TensorId now = stored(4_KiB), first = stored(16_KiB, false), second = stored(16_KiB, false),
                 kept = stored(32_KiB);
  rehearse({now, first, second, kept});

  lease(now, Access::read, Use::recorded);
  run();
  EXPECT_FALSE(in_memory(kept));
  use(first);
  EXPECT_TRUE(in_memory(kept));
}

TEST_F(ReadAhead, CountsOnceWhatIsUsedTwiceBefore) {
  const TensorId now = stored(4_KiB, false), twice = stored(24_KiB, false), between = stored(4_KiB, false),
                 last = stored(24_KiB, false);
  rehearse({now, twice, between, twice, last});
  lease(now, Access::read, Use::recorded);

  residency.prefetch(last);
  run();

  EXPECT_TRUE(in_memory(last));
}

TEST_F(ReadAhead, NeedsNoRoomForWhatHasItsOwn) {
  const TensorId stays = in_memory_only(24_KiB);
  const TensorId now = stored(4_KiB, false), next = stored(24_KiB, false);
  use(now);
  acquire(stays, Access::overwrite, Use::recorded);
  use(next);
  residency.end_round();
  residency.discard(stays);
  lease(now, Access::read, Use::recorded);

  residency.prefetch(next);
  run();

  EXPECT_TRUE(in_memory(next));
}

TEST_F(ReadAhead, EvictsNothingIfThatWouldNotSuffice) {
  std::vector<TensorId> order;
  for (int i = 0; i < 10; ++i) order.push_back(stored(8_KiB, false));
  const TensorId far = stored(8_KiB, false), kept = stored(40_KiB);
  order.insert(order.end(), {far, kept});
  rehearse(order);
  acquire(kept);

  residency.prefetch(far);
  run();

  EXPECT_FALSE(in_memory(far));
  EXPECT_TRUE(in_memory(kept));
}

TEST_F(ReadAhead, DoesNotCountTheRoomOfWhatIsUsedSooner) {
  const TensorId now = stored(4_KiB, false), sooner = stored(40_KiB), wanted = stored(36_KiB, false),
                 later = stored(4_KiB);
  rehearse({now, sooner, wanted, later});
  acquire(sooner);
  acquire(later);
  lease(now, Access::read, Use::recorded);

  residency.prefetch(wanted);  // 16 KiB are free, and 4 belong to a tensor that is used later
  run();

  EXPECT_FALSE(in_memory(wanted));
  EXPECT_TRUE(in_memory(later));  // not evicted in vain
}

TEST_F(ReadAhead, FollowsTheOrderFromWhenItIsKnown) {
  const TensorId first = stored(24_KiB, false), second = stored(24_KiB, false), third = stored(24_KiB, false);
  for (const TensorId tensor : {first, second, third}) use(tensor);
  const TensorId all_room = in_memory_only(64_KiB);
  for (const TensorId tensor : {third, first, second}) residency.prefetch(tensor);

  residency.end_round();
  remove(all_room);
  run();

  EXPECT_TRUE(in_memory(first));
  EXPECT_TRUE(in_memory(second));
  EXPECT_FALSE(in_memory(third));
}

TEST_F(ReadAhead, DoesNotEvictATensorThatIsUsedAndNotRequestedYet) {
  const TensorId used = stored(24_KiB), next = stored(24_KiB), last = stored(24_KiB);
  rehearse({used, next, last});
  for (const TensorId tensor : {used, next}) acquire(tensor);

  residency.announce(used, Access::read);  // from now on `last` is needed sooner
  run();
  EXPECT_TRUE(in_memory(used));
  EXPECT_FALSE(in_memory(last));
  acquire(used);
  residency.retract(used);
  residency.prefetch(last);
  run();

  EXPECT_FALSE(in_memory(used));
  EXPECT_TRUE(in_memory(last));
}

TEST_F(ReadAhead, LeavesRoomForATensorThatIsUsedAndNotRequestedYet) {
  const TensorId used = stored(40_KiB), next = stored(40_KiB, false);
  rehearse({used, next});

  residency.announce(used, Access::read);
  residency.prefetch(next);
  run();

  EXPECT_FALSE(in_memory(next));
}

TEST_F(ReadAhead, MayEvictATensorRequestedBeforeItsUseOnceItsLeaseEnds) {
  const TensorId used = stored(24_KiB), next = stored(24_KiB), last = stored(24_KiB);
  rehearse({used, next, last});
  acquire(next);

  const RequestId id = residency.request(used, Access::read, Use::recorded);
  run();
  ASSERT_TRUE(residency.take(id).value());
  residency.release(used, Access::read);
  run();

  EXPECT_FALSE(in_memory(used));
  EXPECT_TRUE(in_memory(last));
}

TEST_F(ReadAhead, DoesNotEvictAnAnnouncedTensorUntilThatIsRetracted) {
  const TensorId next = stored(24_KiB), last = stored(24_KiB), used = stored(24_KiB);
  rehearse({next, last, used});
  for (const TensorId tensor : {next, last}) use(tensor);
  residency.announce(used, Access::read);
  run();
  ASSERT_TRUE(in_memory(used));
  residency.end_round();
  lease(next, Access::read, Use::recorded);
  run();
  EXPECT_FALSE(in_memory(last));

  residency.retract(used);
  run();

  EXPECT_TRUE(in_memory(last));
}

TEST_F(ReadAhead, LoadsAnAnnouncedTensorOnceThereIsRoom) {
  const TensorId now = stored(4_KiB), announced = stored(24_KiB);
  rehearse({now, announced});
  const TensorId held = add(44_KiB, {}, /*on_disk=*/false).value();
  use(now);
  run();
  ASSERT_FALSE(in_memory(announced));

  residency.announce(announced, Access::read);
  remove(held);
  run();

  EXPECT_TRUE(in_memory(announced));
}

TEST_F(ReadAhead, TriesATensorThatCannotBeReadOnceForEachUse) {
  const TensorId first = stored(4_KiB), unreadable = stored(4_KiB);
  rehearse({first, unreadable});
  const auto loads_before = loads(unreadable);
  const auto fail_load = [&] {
    residency.advance();
    ASSERT_EQ(effects.size(), 1u);
    finish(take_effect(), Error(ErrorCode::deadline_exceeded, "test"));
  };

  lease(first, Access::read, Use::recorded);
  fail_load();
  EXPECT_TRUE(effects.empty());
  EXPECT_EQ(budget.free(),
            budget.size() - 8_KiB);  // `first`, and the range that the kernel may still write to

  // Another attempt when the caller names the tensor, or asks for it; then its use is over.
  residency.prefetch(unreadable);
  fail_load();
  const RequestId id = residency.request(unreadable, Access::read, Use::recorded);
  fail_load();
  EXPECT_EQ(residency.take(id).value().error().code(), ErrorCode::deadline_exceeded);
  run();
  EXPECT_EQ(loads(unreadable), loads_before + 3);
}

TEST_F(ReadAhead, TakesOneFaultFromABlockThatIsCorrupted) {
  ResidencyFixture two(
      {.paths = {{.capacity = 8_MiB, .reserved = 8_MiB}, {.capacity = 8_MiB, .reserved = 8_MiB}}});
  const TensorId first = two.stored(4_KiB), corrupted = two.stored(4_KiB);
  two.rehearse({first, corrupted});
  const std::uint32_t path = two.tensors.description(corrupted).extent->path;

  two.lease(first, Access::read, Use::recorded);
  two.residency.advance();
  for (int i = 0; i < 5 && !two.effects.empty(); ++i) {
    two.finish(two.take_effect(), Error(ErrorCode::corrupted, "test"));
  }

  EXPECT_EQ(two.extents.fault_count(path), 1u);
}

TEST_F(ReadAhead, EvictsCopiesWithoutAKnownUseForAPrefetchBeforeTheOrderIsKnown) {
  const TensorId first = stored(40_KiB), second = stored(24_KiB), prefetched = stored(24_KiB);
  for (const TensorId tensor : {first, second}) acquire(tensor);
  ASSERT_TRUE(in_memory(first) && in_memory(second));

  residency.prefetch(prefetched);
  run();

  EXPECT_TRUE(in_memory(prefetched));
  EXPECT_FALSE(in_memory(first));  // used longest ago
  EXPECT_TRUE(in_memory(second));
}

TEST_F(ReadAhead, DoesNotEvictAPrefetchedCopyForAnotherPrefetch) {
  const TensorId first = stored(40_KiB), second = stored(40_KiB);
  residency.prefetch(first);
  run();
  ASSERT_TRUE(in_memory(first));

  residency.prefetch(second);
  run();
  EXPECT_TRUE(in_memory(first));
  EXPECT_FALSE(in_memory(second));

  acquire(first);  // from now on it may be evicted
  residency.prefetch(second);
  run();
  EXPECT_FALSE(in_memory(first));
  EXPECT_TRUE(in_memory(second));
}

TEST_F(ReadAhead, DoesNotEvictACopyThatIsUsedSoonerForATensorWithoutAKnownUse) {
  const TensorId known = stored(40_KiB), unknown = stored(40_KiB);
  rehearse({known});
  acquire(known);
  ASSERT_TRUE(in_memory(known));

  residency.prefetch(unknown);
  run();

  EXPECT_TRUE(in_memory(known));
  EXPECT_FALSE(in_memory(unknown));
}

// A thread that runs beside the trainer uses its tensors at other points of each round.
TEST_F(ReadAhead, LoadsWhatIsUsedNextWhereverTheTracePredictsIt) {
  const TensorId now = stored(4_KiB, false), sooner = stored(40_KiB, false), tensor = stored(40_KiB, false);
  rehearse({now, sooner, tensor});
  lease(now, Access::read, Use::recorded);

  residency.prefetch(tensor);
  run();
  EXPECT_FALSE(in_memory(tensor));

  residency.prefetch(tensor, Hint::next);
  residency.prefetch(sooner);
  residency.prefetch(tensor);  // does not take the other hint back
  run();
  EXPECT_TRUE(in_memory(tensor));
  EXPECT_FALSE(in_memory(sooner));
}

TEST_F(ReadAhead, LoadsWhatIsUsedNextIntoFreeMemoryOnly) {
  const TensorId now = stored(4_KiB, false), sooner = stored(40_KiB), tensor = stored(24_KiB, false);
  rehearse({now, sooner, tensor});
  acquire(sooner);
  lease(now, Access::read, Use::recorded);

  residency.prefetch(tensor, Hint::next);  // 20 KiB are free
  run();

  EXPECT_FALSE(in_memory(tensor));
  EXPECT_TRUE(in_memory(sooner));
}

TEST_F(ReadAhead, LoadsOthersWhereWhatIsUsedNextHasNoRoom) {
  const TensorId now = stored(4_KiB, false), other = stored(12_KiB, false), sooner = stored(40_KiB),
                 tensor = stored(24_KiB, false);
  rehearse({now, other, sooner, tensor});
  acquire(sooner);
  lease(now, Access::read, Use::recorded);

  residency.prefetch(tensor, Hint::next);
  residency.prefetch(other);
  run();

  EXPECT_FALSE(in_memory(tensor));
  EXPECT_TRUE(in_memory(other));
}

TEST_F(ReadAhead, EvictsForWhatIsUsedNextAsForOthers) {
  const TensorId now = stored(4_KiB, false), tensor = stored(40_KiB, false), later = stored(40_KiB);
  rehearse({now, tensor, later});
  acquire(later);
  lease(now, Access::read, Use::recorded);

  residency.prefetch(tensor, Hint::next);
  run();

  EXPECT_TRUE(in_memory(tensor));
  EXPECT_FALSE(in_memory(later));
}

TEST_F(ReadAhead, LeavesRoomForWhatIsAwaitedBesideWhatIsUsedNext) {
  const TensorId awaited = stored(40_KiB), tensor = stored(40_KiB, false);
  rehearse({awaited, tensor});
  residency.announce(awaited, Access::read);

  residency.prefetch(tensor, Hint::next);
  run();

  EXPECT_FALSE(in_memory(tensor));
  residency.retract(awaited);
}

TEST_F(ReadAhead, EvictsLastWhatIsUsedNext) {
  const TensorId now = stored(4_KiB, false), sooner = stored(24_KiB), tensor = stored(24_KiB, false),
                 other = stored(24_KiB, false);
  rehearse({now, sooner, other, tensor});
  acquire(sooner);
  lease(now, Access::read, Use::recorded);
  residency.prefetch(tensor, Hint::next);
  run();
  ASSERT_TRUE(in_memory(tensor));

  lease(other);
  EXPECT_TRUE(in_memory(tensor));
  EXPECT_FALSE(in_memory(sooner));
}

// 20 tensors of 8 KiB in 64 KiB, of which two uses are looked ahead to.
class ShortReadAhead : public testing::Test, protected ResidencyFixture {
 protected:
  ShortReadAhead() : ResidencyFixture({.lookahead = 16_KiB}) {}
};

TEST_F(ShortReadAhead, FollowsAnOrderInWhichUsesChangePlacesInEveryRound) {
  std::vector<TensorId> order;
  for (int i = 0; i < 20; ++i) order.push_back(stored(8_KiB));
  rehearse(order);
  penstock::test::SeededRandom random(1);
  for (int round = 0; round < 20; ++round) {
    std::vector<TensorId> left = order, used;
    while (!left.empty()) {
      const auto next = static_cast<std::ptrdiff_t>(random.below(std::min<std::size_t>(left.size(), 4)));
      const TensorId tensor = left[static_cast<std::size_t>(next)];
      left.erase(left.begin() + next);
      used.push_back(tensor);
      use(tensor);
      run();
      for (std::size_t ahead = 0; ahead < std::min<std::size_t>(left.size(), 2); ++ahead) {
        EXPECT_TRUE(in_memory(left[ahead])) << "round " << round << ", " << left.size() << " left";
      }
    }
    residency.end_round();
    order = used;
  }
}

}  // namespace
}  // namespace penstock::swap
