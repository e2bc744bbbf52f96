#include "unit/swap/runtime_fixture.hpp"

#include <gtest/gtest.h>
#include <vector>

namespace penstock::swap {
namespace {

using test::add;
using test::Simulation;
using test::write;
using tiers::TensorId;

/// With room for 64 KiB.
class ReadAhead : public testing::Test {
 protected:
  /// On disk. What is not kept goes from memory after each use, and is not looked ahead to.
  TensorId stored(ByteCount size, bool keep = true) {
    const tiers::TensorDescription description{
        .name = "tensor", .size = size, .write_behind = true, .retain = keep};
    const TensorId tensor = runtime.add(description, /*on_disk=*/true).value();
    write(runtime, tensor, 1);
    return tensor;
  }
  void read(TensorId tensor) {
    (void)runtime.acquire(tensor, Access::read).value();
    simulation.run();
  }
  void use_and_read(TensorId tensor) {
    runtime.use(tensor);
    read(tensor);
  }
  /// One round in which they are used in this order, so that the future is known; then they are on disk only.
  void rehearse(const std::vector<TensorId>& order) {
    for (const TensorId tensor : order) use_and_read(tensor);
    runtime.end_round();
    const TensorId all_room = add(runtime, 64_KiB);
    write(runtime, all_room, 1);
    EXPECT_TRUE(runtime.drain());
    runtime.remove(all_room);
  }
  [[nodiscard]] bool in_memory(TensorId tensor) {
    return runtime.store().copy(tensor, tiers::Tier::host).state != tiers::CopyState::absent;
  }

  Simulation simulation{{.host_budget = 64_KiB}};
  Runtime& runtime = *simulation.runtime;
};

TEST_F(ReadAhead, IsVoidOnceTheTensorIsAskedFor) {
  const TensorId held = add(runtime, 32_KiB), large = stored(40_KiB), tensor = stored(24_KiB),
                 other = stored(24_KiB);
  Lease lease = runtime.acquire(held, Access::overwrite).value();
  read(other);
  runtime.prefetch(large);   // finds no room,
  runtime.prefetch(tensor);  // and this comes after it
  read(tensor);
  read(other);
  ASSERT_FALSE(in_memory(tensor));

  lease.end();
  runtime.remove(held);
  runtime.remove(other);
  simulation.run();

  EXPECT_TRUE(in_memory(large));
  EXPECT_FALSE(in_memory(tensor));
}

TEST_F(ReadAhead, GivesRoomInTheOrderOfUse) {
  const TensorId now = stored(4_KiB, false), next = stored(40_KiB, false), last = stored(40_KiB, false);
  rehearse({now, next, last});
  const Lease lease = runtime.acquire(now, Access::read).value();
  runtime.use(now);

  runtime.prefetch(last);
  runtime.prefetch(next);
  simulation.run();

  EXPECT_TRUE(in_memory(next));
  EXPECT_FALSE(in_memory(last));
}

TEST_F(ReadAhead, LeavesRoomForAllThatIsUsedSooner) {
  const TensorId now = stored(4_KiB), first = stored(16_KiB, false), second = stored(16_KiB, false),
                 kept = stored(32_KiB);
  rehearse({now, first, second, kept});

  const Lease lease = runtime.acquire(now, Access::read).value();

  runtime.use(now);
  simulation.run();
  EXPECT_FALSE(in_memory(kept));
  use_and_read(first);
  EXPECT_TRUE(in_memory(kept));
}

TEST_F(ReadAhead, CountsOnceWhatIsUsedTwiceBefore) {
  const TensorId now = stored(4_KiB, false), twice = stored(24_KiB, false), between = stored(4_KiB, false),
                 last = stored(24_KiB, false);
  rehearse({now, twice, between, twice, last});
  const Lease lease = runtime.acquire(now, Access::read).value();
  runtime.use(now);

  runtime.prefetch(last);
  simulation.run();

  EXPECT_TRUE(in_memory(last));
}

TEST_F(ReadAhead, NeedsNoRoomForWhatHasItsOwn) {
  const TensorId stays = runtime.add({.name = "stays", .size = 24_KiB}, /*on_disk=*/false).value();
  const TensorId now = stored(4_KiB, false), next = stored(24_KiB, false);
  use_and_read(now);
  runtime.use(stays);
  write(runtime, stays, 1);
  use_and_read(next);
  runtime.end_round();
  runtime.discard(stays);
  const Lease lease = runtime.acquire(now, Access::read).value();
  runtime.use(now);

  runtime.prefetch(next);
  simulation.run();

  EXPECT_TRUE(in_memory(next));
}

TEST_F(ReadAhead, EvictsNothingWhereThatWouldNotDo) {
  std::vector<TensorId> order;
  for (int i = 0; i < 10; ++i) order.push_back(stored(8_KiB, false));
  const TensorId far = stored(8_KiB, false), kept = stored(40_KiB);
  order.insert(order.end(), {far, kept});
  rehearse(order);
  read(kept);

  runtime.prefetch(far);
  simulation.run();

  EXPECT_FALSE(in_memory(far));
  EXPECT_TRUE(in_memory(kept));
}

TEST_F(ReadAhead, FollowsTheOrderFromWhenItIsKnown) {
  const TensorId first = stored(24_KiB, false), second = stored(24_KiB, false), third = stored(24_KiB, false);
  for (const TensorId tensor : {first, second, third}) use_and_read(tensor);
  const TensorId all_room = add(runtime, 64_KiB);
  Lease lease = runtime.acquire(all_room, Access::overwrite).value();
  for (const TensorId tensor : {third, first, second}) runtime.prefetch(tensor);

  runtime.end_round();
  lease.end();
  runtime.remove(all_room);
  simulation.run();

  EXPECT_TRUE(in_memory(first));
  EXPECT_TRUE(in_memory(second));
  EXPECT_FALSE(in_memory(third));
}

TEST_F(ReadAhead, SparesWhatIsUsedAndNotAskedForYet) {
  const TensorId used = stored(24_KiB), next = stored(24_KiB), last = stored(24_KiB);
  rehearse({used, next, last});
  for (const TensorId tensor : {used, next}) read(tensor);

  runtime.use(used);  // from now on `last` is needed sooner
  simulation.run();
  EXPECT_TRUE(in_memory(used));
  EXPECT_FALSE(in_memory(last));
  read(used);
  runtime.prefetch(last);
  simulation.run();

  EXPECT_FALSE(in_memory(used));
  EXPECT_TRUE(in_memory(last));
}

TEST_F(ReadAhead, LeavesRoomForWhatIsUsedAndNotAskedForYet) {
  const TensorId used = stored(40_KiB), next = stored(40_KiB, false);
  rehearse({used, next});

  runtime.use(used);
  runtime.prefetch(next);
  simulation.run();

  EXPECT_FALSE(in_memory(next));
}

TEST_F(ReadAhead, SparesWhatWasAskedForBeforeItsUseNoLongerThanItsLease) {
  const TensorId used = stored(24_KiB), next = stored(24_KiB), last = stored(24_KiB);
  rehearse({used, next, last});
  read(next);

  const Ticket ticket = runtime.request(used, Access::read);
  runtime.use(used);
  simulation.run();
  (void)runtime.take(ticket, used, Access::read)->value();
  simulation.run();

  EXPECT_FALSE(in_memory(used));
  EXPECT_TRUE(in_memory(last));
}

TEST_F(ReadAhead, SparesWhatNobodyAsksForUntilTheRoundEnds) {
  const TensorId next = stored(24_KiB), last = stored(24_KiB), used = stored(24_KiB);
  rehearse({next, last, used});
  for (const TensorId tensor : {next, last}) use_and_read(tensor);
  runtime.use(used);
  simulation.run();
  ASSERT_TRUE(in_memory(used));

  runtime.end_round();
  const Lease lease = runtime.acquire(next, Access::read).value();
  runtime.use(next);
  simulation.run();

  EXPECT_TRUE(in_memory(last));
}

}  // namespace
}  // namespace penstock::swap
