#include "swap/residency/host_residency.hpp"

#include "unit/swap/residency/residency_fixture.hpp"

#include <gtest/gtest.h>
#include <array>
#include <thread>
#include <vector>

// Grants, eviction and write-behind, decided without a disk, a lock or a thread.

namespace penstock::swap {
namespace {

using test::ResidencyFixture;
using tiers::CopyState;
using tiers::TensorId;
using Kind = ResidencyFixture::Effect::Kind;

/// With room for 64 KiB.
class HostResidencyTest : public testing::Test, protected ResidencyFixture {
 protected:
  HostResidencyTest() : ResidencyFixture({}) {}
  static Error failure() { return Error(ErrorCode::io, "test"); }
};

TEST_F(HostResidencyTest, LoadsWhatIsReadAndGrantsItOnceItsBytesAreThere) {
  const TensorId tensor = stored(8_KiB);
  acquire(add(64_KiB, {.transient = true}, false).value(), Access::overwrite);  // evicts it

  const RequestId id = request(tensor, Access::read);

  ASSERT_EQ(effects.size(), 1u);
  EXPECT_EQ(effects.front().kind, Kind::load);
  EXPECT_TRUE(effects.front().verify);
  EXPECT_FALSE(residency.take(id));
  finish(take_effect());
  EXPECT_TRUE(residency.take(id).value());
  EXPECT_EQ(loads(tensor), 1u);
}

TEST_F(HostResidencyTest, LoadsOnceForAllThatWait) {
  const TensorId tensor = stored(8_KiB, /*retain=*/false);
  const RequestId first = request(tensor, Access::read), second = request(tensor, Access::read);
  ASSERT_EQ(effects.size(), 1u);

  finish(take_effect());

  EXPECT_TRUE(residency.take(first).value());
  EXPECT_TRUE(residency.take(second).value());
}

TEST_F(HostResidencyTest, FailsTheRequestsOfALoadThatFailedAndLoadsAgainForTheNext) {
  const TensorId tensor = stored(8_KiB, /*retain=*/false);
  const RequestId id = request(tensor, Access::read);

  finish(take_effect(), failure());

  const auto outcome = residency.take(id);
  ASSERT_TRUE(outcome && !*outcome);
  EXPECT_EQ(outcome->error().code(), ErrorCode::io);
  EXPECT_NE(outcome->error().message().find(tensors.description(tensor).name), std::string::npos);
  EXPECT_EQ(budget.free(), 64_KiB);
  acquire(tensor);
}

TEST_F(HostResidencyTest, KeepsTheRangeOfALoadThatHangs) {
  const TensorId tensor = stored(8_KiB, /*retain=*/false);
  (void)request(tensor, Access::read);

  finish(take_effect(), Error(ErrorCode::deadline_exceeded, "test"));

  EXPECT_EQ(budget.free(), 56_KiB);
  EXPECT_FALSE(in_memory(tensor));
}

TEST_F(HostResidencyTest, RefusesToReadWhatWasNeverWritten) {
  for (const Access access : {Access::read, Access::modify}) {
    const auto outcome = residency.take(request(add(4_KiB).value(), access));
    ASSERT_TRUE(outcome && !*outcome);
    EXPECT_EQ(outcome->error().code(), ErrorCode::invalid_argument);
  }
}

TEST_F(HostResidencyTest, CountsReadersAndKeepsAModifyOut) {
  const TensorId tensor = dirty(4_KiB);
  lease(tensor);
  lease(tensor);
  const RequestId modify = request(tensor, Access::modify);

  residency.release(tensor, Access::read);
  residency.advance();
  EXPECT_FALSE(residency.take(modify));
  residency.release(tensor, Access::read);
  residency.advance();

  EXPECT_TRUE(residency.take(modify).value());
  const RequestId reader = request(tensor, Access::read);
  EXPECT_FALSE(residency.take(reader));
}

TEST_F(HostResidencyTest, GrantsMemoryInTheOrderOfTheRequests) {
  const TensorId held = dirty(48_KiB), large = stored(40_KiB, false), small = stored(8_KiB, false);
  lease(held);
  const RequestId first = request(large, Access::read), second = request(small, Access::read);

  EXPECT_TRUE(effects.empty());  // small would fit, and large came first
  residency.cancel(first, large, Access::read);
  residency.advance();

  ASSERT_EQ(effects.size(), 1u);
  EXPECT_EQ(effects.front().tensor, small);
  finish(take_effect());
  EXPECT_TRUE(residency.take(second).value());
}

TEST_F(HostResidencyTest, NamesTheHoldersWhenNothingCouldFreeTheRoom) {
  const TensorId held = add(40_KiB, {.name = "held"}).value(), next = add(40_KiB).value();
  lease(held, Access::overwrite);
  const RequestId id = request(next, Access::overwrite);
  EXPECT_FALSE(residency.take(id));

  residency.fail_starved_request();

  const auto outcome = residency.take(id);
  ASSERT_TRUE(outcome && !*outcome);
  EXPECT_EQ(outcome->error().code(), ErrorCode::budget_too_small);
  EXPECT_NE(outcome->error().message().find("leased  held 40.0 KiB"), std::string::npos)
      << outcome->error().message();
}

/// Requests of two threads for tensors of half of the memory.
class HostResidencyOfThreads : public HostResidencyTest {
 protected:
  HostResidencyOfThreads() {
    for (TensorId& tensor : tensors_) tensor = add(32_KiB).value();
    std::thread other([] {});
    other_ = other.get_id();
    other.join();
  }
  [[nodiscard]] Requester self(bool blocks = false) const {
    return {.thread = std::this_thread::get_id(), .blocks = blocks};
  }
  [[nodiscard]] Requester other(bool blocks = false) const { return {.thread = other_, .blocks = blocks}; }
  RequestId next(Requester requester) {
    const RequestId id =
        residency.request(tensors_[requests_++], Access::overwrite, Use::unrecorded, requester);
    residency.advance();
    return id;
  }
  /// As the runtime does when nothing is in flight.
  void fail_starved_requests() {
    ASSERT_TRUE(effects.empty());
    while (residency.fail_starved_request()) residency.advance();
  }
  void expect_refused(RequestId id) {
    const auto outcome = residency.take(id);
    ASSERT_TRUE(outcome) << "it waits";
    ASSERT_FALSE(*outcome);
    EXPECT_EQ(outcome->error().code(), ErrorCode::budget_too_small);
  }

 private:
  std::array<TensorId, 6> tensors_;
  std::size_t requests_ = 0;
  std::thread::id other_;
};

TEST_F(HostResidencyOfThreads, FailTheCallInWhichAThreadBlocksThatDoesNotTakeItsGrants) {
  const RequestId first = next(self()), second = next(self()), waiting = next(self()),
                  call = next(self(/*blocks=*/true));

  fail_starved_requests();

  expect_refused(call);
  EXPECT_TRUE(residency.take(first).value());
  EXPECT_TRUE(residency.take(second).value());
  EXPECT_FALSE(residency.take(waiting));  // the thread can end the leases that it has taken now
}

TEST_F(HostResidencyOfThreads, GrantTheCallInWhichAThreadBlocksWhereOnlyARequestBeforeItLacksRoom) {
  const RequestId granted = next(self());
  const auto request = [&](TensorId tensor, Access access, bool blocks) {
    const RequestId id = residency.request(tensor, access, Use::unrecorded, self(blocks));
    residency.advance();
    return id;
  };
  const RequestId waiting = request(add(48_KiB).value(), Access::overwrite, false);
  const RequestId call = request(add(4_KiB).value(), Access::overwrite, true);

  fail_starved_requests();

  EXPECT_TRUE(residency.take(call).value());
  EXPECT_TRUE(residency.take(granted).value());
  EXPECT_FALSE(residency.take(waiting));
}

TEST_F(HostResidencyOfThreads, LoadForTheCallInWhichAThreadBlocksWhereOnlyARequestBeforeItLacksRoom) {
  const TensorId small = stored(4_KiB, false);
  const RequestId granted = next(self());
  const RequestId waiting =
      residency.request(add(48_KiB).value(), Access::overwrite, Use::unrecorded, self());
  residency.advance();
  const RequestId call = residency.request(small, Access::read, Use::unrecorded, self(/*blocks=*/true));
  residency.advance();
  ASSERT_TRUE(effects.empty());

  EXPECT_TRUE(residency.fail_starved_request());

  ASSERT_EQ(effects.size(), 1u);
  finish(take_effect());
  EXPECT_TRUE(residency.take(call).value());
  EXPECT_TRUE(residency.take(granted).value());
  EXPECT_FALSE(residency.take(waiting));
}

TEST_F(HostResidencyOfThreads, FailTheLastCallIfAllThreadsBlockThatHaveGrants) {
  const RequestId of_other = next(other()), own = next(self());
  const RequestId call = next(self(/*blocks=*/true)), last_call = next(other(/*blocks=*/true));

  fail_starved_requests();

  expect_refused(last_call);
  EXPECT_FALSE(residency.take(call));  // the other thread continues and may free memory
  EXPECT_TRUE(residency.take(of_other).value());
  EXPECT_TRUE(residency.take(own).value());
}

TEST_F(HostResidencyOfThreads, FailNothingWhileAThreadThatDoesNotBlockHasAGrant) {
  const RequestId granted = next(other());
  (void)next(self());
  const RequestId call = next(self(/*blocks=*/true));

  fail_starved_requests();
  EXPECT_FALSE(residency.take(call));

  EXPECT_TRUE(residency.take(granted).value());  // now a lease, which its holder may keep
  fail_starved_requests();
  expect_refused(call);
}

TEST_F(HostResidencyOfThreads, FailNothingWhileTheMoverHasAGrant) {
  const RequestId of_mover = next({});
  (void)next(self());
  const RequestId call = next(self(/*blocks=*/true));

  fail_starved_requests();

  EXPECT_FALSE(residency.take(call));
  EXPECT_TRUE(residency.take(of_mover).value());
}

TEST_F(HostResidencyOfThreads, FailTheFirstRequestIfAThreadWithGrantsBlocksForATensorInMemory) {
  const TensorId resident = dirty(4_KiB);
  lease(resident, Access::modify);
  (void)next(self());
  const RequestId call = residency.request(resident, Access::read, Use::unrecorded, self(/*blocks=*/true));
  const RequestId starved = next(other());

  fail_starved_requests();

  expect_refused(starved);  // the holder of `resident` may block too
  EXPECT_FALSE(residency.take(call));
  residency.release(resident, Access::modify);
  residency.advance();
  EXPECT_TRUE(residency.take(call).value());
}

TEST_F(HostResidencyTest, StoresADirtyCopyBeforeItDropsIt) {
  const TensorId old = dirty(40_KiB), next = add(40_KiB).value();

  const RequestId id = request(next, Access::overwrite);

  ASSERT_EQ(effects.size(), 1u);
  EXPECT_EQ(effects.front().kind, Kind::store);
  EXPECT_EQ(effects.front().tensor, old);
  EXPECT_TRUE(drops.empty());
  finish(take_effect());
  EXPECT_EQ(drops, std::vector{old});
  EXPECT_TRUE(residency.take(id).value());
}

TEST_F(HostResidencyTest, StoresNoDirtyCopyMoreThanItNeedsForRoom) {
  (void)dirty(24_KiB);
  (void)dirty(24_KiB);
  const RequestId id = request(add(24_KiB).value(), Access::overwrite);
  residency.advance();
  EXPECT_EQ(effects.size(), 1u);

  finish(take_effect());

  EXPECT_TRUE(residency.take(id).value());
  EXPECT_TRUE(effects.empty());  // the other one did not have to be written
}

TEST_F(HostResidencyTest, StoresWriteBehindAtOnceAndDropsWhatIsNotRetained) {
  const TensorId tensor = add(8_KiB, {.write_behind = true, .retain = false}).value();
  acquire(tensor, Access::overwrite);

  EXPECT_EQ(residency.stores_pending(), 1u);
  EXPECT_FALSE(residency.all_stored());
  finish(take_effect());

  EXPECT_TRUE(residency.all_stored());
  EXPECT_EQ(drops, std::vector{tensor});
  EXPECT_EQ(ledger.traffic(tiers::Purpose::scratch).written, 8_KiB);
}

TEST_F(HostResidencyTest, KeepsTheContentsWhenAGrantedLeaseIsCancelled) {
  const TensorId written = stored(8_KiB), never_written = add(8_KiB).value();
  for (const Access access : {Access::overwrite, Access::modify, Access::read}) {
    residency.cancel(request(written, access), written, access);
    EXPECT_EQ(tensors.copy(written).version, 1u);
    EXPECT_TRUE(tensors.stored(written));
  }

  residency.cancel(request(never_written, Access::overwrite), never_written, Access::overwrite);

  EXPECT_FALSE(in_memory(never_written));
  EXPECT_EQ(budget.free(), 56_KiB);
}

TEST_F(HostResidencyTest, RefusesATensorThatIsToStayWhereOnlyDirtyOnesCouldMakeRoom) {
  (void)dirty(40_KiB);

  const auto refused = add(40_KiB, {}, /*on_disk=*/false);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small);
  EXPECT_TRUE(effects.empty());
  EXPECT_EQ(tensors.tensors().size(), 1u);
}

TEST_F(HostResidencyTest, KeepsTheRangeOfAMemoryOnlyTensorWhenItsContentsChange) {
  const TensorId stays = add(40_KiB, {}, /*on_disk=*/false).value();
  for (int i = 0; i < 2; ++i) {
    acquire(stays, Access::overwrite);
    residency.discard(stays);
    EXPECT_EQ(budget.free(), 24_KiB);
  }
  EXPECT_EQ(residency.take(request(stays, Access::read))->error().code(), ErrorCode::invalid_argument);
}

TEST_F(HostResidencyTest, DiscardsOnlyAfterTheTransferInFlight) {
  const TensorId loading = stored(8_KiB, false), storing = add(8_KiB, {.write_behind = true}).value();
  const RequestId id = request(loading, Access::read);
  const auto load = take_effect();
  acquire(storing, Access::overwrite);
  const auto store = take_effect();
  residency.cancel(id, loading, Access::read);
  for (const TensorId tensor : {loading, storing}) residency.discard(tensor);
  EXPECT_TRUE(in_memory(loading) && in_memory(storing));

  finish(load);
  finish(store);

  EXPECT_FALSE(in_memory(loading) || in_memory(storing));
  EXPECT_FALSE(tensors.stored(loading) || tensors.stored(storing));
}

TEST_F(HostResidencyTest, DiscardsAlsoWhenTheLoadInFlightFails) {
  const TensorId tensor = stored(8_KiB, false);
  const RequestId id = request(tensor, Access::read);
  const auto load = take_effect();
  residency.cancel(id, tensor, Access::read);
  residency.discard(tensor);

  finish(load, failure());

  EXPECT_FALSE(tensors.stored(tensor));
  EXPECT_EQ(residency.take(request(tensor, Access::read))->error().code(), ErrorCode::invalid_argument);
}

TEST_F(HostResidencyTest, ReportsAFailedStoreOnceAndStoresAgain) {
  const TensorId tensor = add(8_KiB, {.write_behind = true}).value();
  acquire(tensor, Access::overwrite);
  finish(take_effect(), failure());

  EXPECT_TRUE(effects.empty());
  EXPECT_TRUE(residency.store_failed());
  const auto error = residency.take_store_error();
  ASSERT_TRUE(error);
  EXPECT_NE(error->message().find("stays in memory, not yet stored"), std::string::npos);
  EXPECT_FALSE(residency.take_store_error());
  run();

  EXPECT_TRUE(residency.all_stored());
  EXPECT_TRUE(tensors.stored(tensor));
}

TEST_F(HostResidencyTest, GrantsNoMemoryUntilTheErrorOfAFailedStoreWasTaken) {
  const TensorId old = dirty(40_KiB), next = add(40_KiB).value();
  const RequestId id = request(next, Access::overwrite);
  finish(take_effect(), failure());
  residency.fail_starved_request();
  EXPECT_FALSE(residency.take(id));  // neither refused nor tried again
  EXPECT_TRUE(effects.empty());

  (void)residency.take_store_error();
  run();

  EXPECT_TRUE(residency.take(id).value());
  EXPECT_TRUE(tensors.stored(old));
}

TEST_F(HostResidencyTest, ForgetsTheFailedStoreOfATensorThatIsRemoved) {
  const TensorId removed = add(8_KiB, {.write_behind = true}).value(),
                 stays = add(8_KiB, {.write_behind = true}).value();
  for (const TensorId tensor : {removed, stays}) acquire(tensor, Access::overwrite);
  finish(take_effect(), failure());
  finish(take_effect(), failure());

  residency.forget(removed);
  (void)residency.remove(removed);
  run();

  EXPECT_FALSE(residency.store_failed());
  EXPECT_TRUE(tensors.stored(stays));
}

TEST_F(HostResidencyTest, StoresElsewhereWhatAGenerationPins) {
  const TensorId tensor = stored(8_KiB);
  const tiers::Extent pinned = *tensors.description(tensor).extent;
  ASSERT_TRUE(residency.pin_extent(tensor, 1));

  acquire(tensor, Access::modify);
  run();

  const tiers::Extent current = *tensors.description(tensor).extent;
  EXPECT_NE(current, pinned);
  EXPECT_EQ(ledger.line(tiers::Tier::nvme, tiers::Purpose::scratch).held, 16_KiB);
  acquire(tensor, Access::modify);
  run();
  EXPECT_EQ(*tensors.description(tensor).extent, current);  // nothing pins that one
  residency.release_generation(1);
  EXPECT_EQ(ledger.line(tiers::Tier::nvme, tiers::Purpose::scratch).held, 8_KiB);
  EXPECT_EQ(extents.allocate(8_KiB).value(), pinned);
}

TEST_F(HostResidencyTest, PinsOnlyWhatIsStored) {
  const TensorId tensor = dirty(8_KiB), in_memory = add(8_KiB, {}, false).value();
  EXPECT_EQ(residency.pin_extent(tensor, 1).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(residency.pin_extent(in_memory, 1).error().code(), ErrorCode::invalid_argument);
}

TEST_F(HostResidencyTest, LosesNothingWhereAPinnedExtentLeavesNoRoomForTheNextStore) {
  ResidencyFixture full({.paths = {{.capacity = 8_KiB, .reserved = 8_KiB}}});
  const TensorId tensor = full.stored(8_KiB);
  ASSERT_TRUE(full.residency.pin_extent(tensor, 1));

  full.acquire(tensor, Access::modify);

  const auto error = full.residency.take_store_error();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::no_space);
  EXPECT_EQ(full.tensors.copy(tensor).state, CopyState::dirty);
  full.residency.release_generation(1);
  full.run();
  EXPECT_TRUE(full.tensors.stored(tensor));
}

}  // namespace
}  // namespace penstock::swap
