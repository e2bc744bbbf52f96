#include "swap/runtime_internals.hpp"
#include "unit/swap/runtime_fixture.hpp"

#include <gtest/gtest.h>
#include <string>
#include <utility>
#include <vector>

namespace penstock::swap {
namespace {

using test::add;
using test::holds;
using test::Simulation;
using test::write;
using tiers::TensorId;

/// Host memory for two tensors of this size.
constexpr ByteCount size = 24_KiB;

struct PendingLeases : testing::Test {
  TensorId written() {
    const TensorId tensor = add(runtime, size);
    write(runtime, tensor, 1);
    return tensor;
  }

  Simulation simulation{{.host_budget = size * 2}};
  Runtime& runtime = *simulation.runtime;
};

TEST_F(PendingLeases, AreNotGrantedBeforeTheyAreAsked) {
  const TensorId tensor = written();
  PendingLease pending = runtime.announce(tensor, Access::modify);
  simulation.run();

  EXPECT_FALSE(pending.poll());
  EXPECT_TRUE(runtime.acquire(tensor, Access::modify));  // an announcement excludes no other lease

  pending.ask();
  simulation.run();
  const auto lease = pending.poll();
  ASSERT_TRUE(lease && *lease);
  EXPECT_EQ((*lease)->bytes().size(), size);
}

TEST_F(PendingLeases, AskOnce) {
  const TensorId tensor = written();
  PendingLease announced = runtime.announce(tensor, Access::modify);
  PendingLease requested = runtime.request(tensor, Access::read);
  requested.ask();
  simulation.run();
  EXPECT_TRUE(requested.poll().value());  // ended at once: it is a temporary

  announced.ask();
  announced.ask();
  simulation.run();
  EXPECT_TRUE(announced.poll().value());

  EXPECT_TRUE(holds(runtime, tensor, 1));  // no other lease is held
  PendingLease().ask();
}

TEST_F(PendingLeases, ArePendingUntilTheyHaveAResultOrAreCancelled) {
  const TensorId tensor = written(), never_written = add(runtime, size);
  EXPECT_FALSE(PendingLease().pending());

  PendingLease granted = runtime.announce(tensor, Access::read);
  EXPECT_TRUE(granted.pending());
  granted.ask();
  simulation.run();
  EXPECT_TRUE(granted.pending());
  EXPECT_TRUE(granted.poll().value());
  EXPECT_FALSE(granted.pending());
  EXPECT_FALSE(granted.poll());

  PendingLease failed = runtime.request(never_written, Access::read);
  simulation.run();
  EXPECT_EQ(failed.poll().value().error().code(), ErrorCode::invalid_argument);
  EXPECT_FALSE(failed.pending());

  PendingLease cancelled = runtime.announce(tensor, Access::read);
  PendingLease moved = std::move(cancelled);
  EXPECT_FALSE(cancelled.pending());
  EXPECT_TRUE(moved.pending());
  moved.cancel();
  EXPECT_FALSE(moved.pending());
}

TEST_F(PendingLeases, KeepAnAnnouncedTensorInMemoryUntilTheyAreCancelled) {
  const TensorId announced = written(), other = written();
  ASSERT_TRUE(runtime.flush());
  {
    const PendingLease pending = runtime.announce(announced, Access::read);

    const TensorId third = written();

    EXPECT_TRUE(runtime.in_memory(announced));  // although it was used before `other`
    EXPECT_FALSE(runtime.in_memory(other));
    EXPECT_TRUE(runtime.in_memory(third));
    EXPECT_TRUE(runtime.flush());
  }

  (void)written();

  EXPECT_FALSE(runtime.in_memory(announced));
}

// Until they are polled, grants could be taken back.
TEST_F(PendingLeases, ThatWaitFailOnceTheOthersAreHeld) {
  std::vector<TensorId> tensors;
  std::vector<PendingLease> pending;
  std::vector<Lease> held;
  for (int i = 0; i < 4; ++i) tensors.push_back(written());
  ASSERT_TRUE(runtime.flush());
  for (const TensorId tensor : tensors) pending.push_back(runtime.request(tensor, Access::modify));
  simulation.run();

  for (int i = 0; i < 2; ++i) held.push_back(pending[static_cast<std::size_t>(i)].poll().value().value());

  for (std::size_t i = 2; i < 4; ++i) {
    const auto refused = pending[i].poll();
    ASSERT_TRUE(refused) << i;
    EXPECT_EQ(refused->error().code(), ErrorCode::budget_too_small);
  }
  held.pop_back();
  simulation.run();
  EXPECT_TRUE(runtime.acquire(tensors[3], Access::modify));
}

TEST_F(PendingLeases, ThatAreRequestedLaterAreNoUsesBefore) {
  const TensorId later = written(), other = written();
  ASSERT_TRUE(runtime.flush());
  runtime.begin_trace();
  PendingLease pending = RuntimeInternals(runtime).request_later(later, Access::read);

  const TensorId third = written();
  EXPECT_FALSE(runtime.in_memory(later));  // it was used before `other`
  EXPECT_TRUE(runtime.in_memory(other));
  EXPECT_FALSE(pending.poll());
  (void)RuntimeInternals(runtime).request_later(third, Access::read);  // has nothing to withdraw

  pending.ask();
  simulation.run();
  EXPECT_TRUE(pending.poll().value());
  const AccessTrace trace = runtime.end_trace("later").value();
  ASSERT_EQ(trace.uses.size(), 1u);
  EXPECT_EQ(trace.uses[0].access, Access::read);
  for (int i = 0; i < 2; ++i) {
    (void)written();
    ASSERT_TRUE(runtime.flush());
  }
  EXPECT_FALSE(runtime.in_memory(third));
}

TEST_F(PendingLeases, AreGrantedInTheOrderInWhichTheyAreAskedForThoughLaterOnesAreInMemory) {
  for (const Access access : {Access::read, Access::modify}) {
    std::vector<TensorId> tensors;
    for (int i = 0; i < 4; ++i) tensors.push_back(written());  // the last two are in memory, being stored
    std::vector<PendingLease> pending;
    for (const TensorId tensor : tensors) pending.push_back(runtime.request(tensor, access));
    for (PendingLease& one : pending) {
      simulation.run();
      auto lease = one.poll();
      ASSERT_TRUE(lease) << "it waits for memory that later requests hold";
      ASSERT_TRUE(*lease) << lease->error().message();
    }
    for (const TensorId tensor : tensors) {
      EXPECT_TRUE(holds(runtime, tensor, 1));
      runtime.remove(tensor).value();
    }
  }
}

TEST_F(PendingLeases, FailForLackOfMemoryThoughLaterOnesAreGrantedThatCannotMakeRoom) {
  const TensorId starved = add(runtime, size), held = add(runtime, size);
  const TensorId resident = add(runtime, 8_KiB, /*on_disk=*/false), stored = add(runtime, 8_KiB);
  write(runtime, resident, 1);
  const Lease lease = runtime.acquire(held, Access::overwrite).value();
  write(runtime, stored, 1);  // its store is in flight: the next request is not refused at once
  PendingLease first = runtime.request(starved, Access::overwrite);
  PendingLease second = runtime.request(resident, Access::read);
  simulation.run();

  const auto outcome = first.poll();

  ASSERT_TRUE(outcome) << "it waits for memory that the later request cannot free";
  EXPECT_EQ(outcome->error().code(), ErrorCode::budget_too_small);
  EXPECT_TRUE(second.poll().value());
}

TEST_F(PendingLeases, AllFailForLackOfMemoryThatLeasesHold) {
  const TensorId first = written(), second = written(), third = written(), fourth = written(),
                 fifth = written();
  const Lease a = runtime.acquire(first, Access::read).value(),
              b = runtime.acquire(second, Access::read).value();
  PendingLease pending[] = {runtime.request(third, Access::read), runtime.request(fourth, Access::read)};

  const auto refused = runtime.acquire(fifth, Access::read);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small);
  for (PendingLease& each : pending) EXPECT_EQ(each.poll()->error().code(), ErrorCode::budget_too_small);
}

TEST_F(PendingLeases, ThatAreGrantedCountAsMemoryThatTheThreadDoesNotFreeWhileItWaits) {
  const TensorId first = written(), second = written(), third = written();
  PendingLease pending[] = {runtime.request(first, Access::read), runtime.request(second, Access::read)};
  simulation.run();

  const auto refused = runtime.acquire(third, Access::read);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small);
  for (PendingLease& each : pending) EXPECT_TRUE(each.poll().value());
  EXPECT_TRUE(runtime.acquire(third, Access::read));
}

TEST_F(PendingLeases, ThatWaitBehindThoseThatAreGrantedDoNotLetTheirThreadWaitForEver) {
  for (const bool holds_a_lease : {false, true}) {
    const TensorId first = written(), second = written(), third = written(), fourth = written();
    Lease held = holds_a_lease ? runtime.acquire(first, Access::read).value() : Lease();
    PendingLease one = holds_a_lease ? PendingLease() : runtime.request(first, Access::read);
    PendingLease two = runtime.request(second, Access::read);
    simulation.run();
    PendingLease waiting = runtime.request(third, Access::read);
    simulation.run();

    const auto refused = runtime.acquire(fourth, Access::read);

    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small);
    EXPECT_FALSE(waiting.poll());  // this thread can free memory now
    held.end();
    one.cancel();
    EXPECT_TRUE(two.poll().value());
    simulation.run();
    EXPECT_TRUE(waiting.poll().value());
    EXPECT_TRUE(runtime.acquire(fourth, Access::read));
  }
}

TEST_F(PendingLeases, ForbidTheirThreadALeaseThatTheyExclude) {
  const TensorId tensor = written(), other = written();
  for (const auto& [pending, wanted] :
       {std::pair(Access::modify, Access::read), std::pair(Access::read, Access::modify)}) {
    PendingLease asked = runtime.request(tensor, pending);
    for (int granted = 0; granted < 2; ++granted) {
      const auto refused = runtime.acquire(tensor, wanted);
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
      EXPECT_NE(refused.error().message().find("poll()"), std::string::npos) << refused.error().message();
      simulation.run();
    }
    EXPECT_TRUE(runtime.acquire(other, wanted));
    asked.cancel();
    EXPECT_TRUE(runtime.acquire(tensor, wanted));
  }
  const PendingLease read = runtime.request(tensor, Access::read);
  EXPECT_TRUE(runtime.acquire(tensor, Access::read));
}

TEST_F(PendingLeases, FailForLackOfMemoryOnlyWhenNoGrantIsOutstanding) {
  const TensorId first = written(), second = written(), third = written();
  const Lease held = runtime.acquire(second, Access::read).value();
  PendingLease resident = runtime.request(third, Access::read);
  simulation.run();
  PendingLease starved = runtime.request(first, Access::read);
  simulation.run();
  EXPECT_FALSE(starved.poll());  // the holder of the earlier grant may free memory

  { const auto taken = resident.poll(); }
  simulation.run();

  EXPECT_TRUE(starved.poll()->has_value());
}

}  // namespace
}  // namespace penstock::swap
