#include "kit/scratch_directory.hpp"
#include "swap/runtime_internals.hpp"
#include "unit/swap/runtime_fixture.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::swap {
namespace {

using test::add;
using test::holds;
using test::Simulation;
using test::write;
using tiers::TensorId;

TEST(Lease, ThatOutlivesItsRuntimeKeepsItsBytes) {
  for (const Access access : {Access::read, Access::modify, Access::overwrite}) {
    auto simulation = std::make_unique<Simulation>(Simulation::Options{.host_budget = 64_KiB});
    const TensorId tensor = add(*simulation->runtime, 4_KiB);
    write(*simulation->runtime, tensor, 1);
    Lease lease = simulation->runtime->acquire(tensor, access).value();

    simulation.reset();

    std::fill_n(lease.bytes().data(), lease.bytes().size().value(), std::byte{7});
    lease.end();
    EXPECT_FALSE(lease.held());
  }
}

TEST(Lease, ThatOutlivesARuntimeOnARealDiskKeepsItsBytes) {
  const penstock::test::ScratchDirectory directory;
  auto runtime =
      Runtime::create({.host_budget = 64_KiB, .paths = {{.directory = directory.path(), .capacity = 1_MiB}}})
          .value();
  const TensorId tensor = add(*runtime, 4_KiB);
  write(*runtime, tensor, 1);
  const Lease lease = runtime->acquire(tensor, Access::modify).value();
  const PendingLease pending = runtime->request(tensor, Access::read);

  runtime.reset();

  std::fill_n(lease.bytes().data(), lease.bytes().size().value(), std::byte{7});
  EXPECT_EQ(lease.bytes().data()[4095], std::byte{7});
  EXPECT_TRUE(pending.pending());
}

TEST(Lease, ThatIsPendingFailsWhenItsRuntimeIsDestroyed) {
  auto simulation = std::make_unique<Simulation>(Simulation::Options{.host_budget = 64_KiB});
  const TensorId tensor = add(*simulation->runtime, 4_KiB);
  write(*simulation->runtime, tensor, 1);
  PendingLease granted = simulation->runtime->request(tensor, Access::read);
  PendingLease waiting = simulation->runtime->request(tensor, Access::modify);
  PendingLease announced = simulation->runtime->announce(tensor, Access::read);
  PendingLease cancelled = simulation->runtime->request(tensor, Access::read);

  simulation.reset();

  for (PendingLease* const pending : {&granted, &waiting}) {
    const auto outcome = pending->poll();
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->error().code(), ErrorCode::failed_state);
  }
  announced.ask();
  EXPECT_EQ(announced.poll()->error().code(), ErrorCode::failed_state);
  cancelled.cancel();
}

TEST(Lease, HasNoBytesOnceItHasEnded) {
  Simulation simulation({.host_budget = 64_KiB});
  const TensorId tensor = add(*simulation.runtime, 4_KiB);
  Lease lease = simulation.runtime->acquire(tensor, Access::overwrite).value();
  Lease moved = std::move(lease);

  EXPECT_TRUE(lease.bytes().empty());
  EXPECT_EQ(moved.bytes().size(), 4_KiB);
  moved.end();
  EXPECT_TRUE(moved.bytes().empty());
}

TEST(Lease, IsRefusedToThreadsThatWaitWhenTheirRuntimeIsDestroyed) {
  const penstock::test::ScratchDirectory directory;
  auto runtime =
      Runtime::create({.host_budget = 64_KiB, .paths = {{.directory = directory.path(), .capacity = 1_MiB}}})
          .value();
  const TensorId tensor = add(*runtime, 4_KiB);
  Lease held = runtime->acquire(tensor, Access::overwrite).value();
  std::vector<std::optional<ErrorCode>> codes(3);
  std::vector<std::thread> waiting;
  for (auto& code : codes) {
    waiting.emplace_back([&, &runtime = *runtime] {
      const auto refused = runtime.acquire(tensor, Access::read);
      if (!refused) code = refused.error().code();
    });
  }
  while (RuntimeInternals(*runtime).threads_waiting() < codes.size()) std::this_thread::yield();

  runtime.reset();

  for (std::thread& thread : waiting) thread.join();
  for (const auto& code : codes) EXPECT_EQ(code, ErrorCode::failed_state);
  held.end();
}

TEST(Lease, IsRefusedToAThreadThatHoldsOneThatExcludesIt) {
  Simulation simulation({.host_budget = 64_KiB});
  Runtime& runtime = *simulation.runtime;
  const TensorId tensor = add(runtime, 4_KiB), other = add(runtime, 4_KiB);
  write(runtime, tensor, 1);
  write(runtime, other, 1);
  for (const auto& [held, wanted] :
       {std::pair(Access::modify, Access::read), std::pair(Access::read, Access::modify),
        std::pair(Access::overwrite, Access::overwrite)}) {
    Lease lease = runtime.acquire(tensor, held).value();
    const auto refused = runtime.acquire(tensor, wanted);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message().find("this thread holds a lease"), std::string::npos)
        << refused.error().message();
    EXPECT_TRUE(runtime.acquire(other, wanted));  // of another tensor
    lease.end();
    EXPECT_TRUE(runtime.acquire(tensor, wanted));
  }
  const Lease first = runtime.acquire(tensor, Access::read).value();
  EXPECT_TRUE(runtime.acquire(tensor, Access::read));  // readers do not exclude each other
}

TEST(Lease, OfAnotherThreadIsWaitedFor) {
  const penstock::test::ScratchDirectory directory;
  const auto runtime =
      Runtime::create({.host_budget = 64_KiB, .paths = {{.directory = directory.path(), .capacity = 1_MiB}}})
          .value();
  const TensorId tensor = add(*runtime, 4_KiB);
  write(*runtime, tensor, 1);
  Lease lease = runtime->acquire(tensor, Access::modify).value();
  std::atomic<bool> granted = false;
  std::thread waiter([&] { granted = runtime->acquire(tensor, Access::modify).has_value(); });
  lease.end();
  waiter.join();
  EXPECT_TRUE(granted);

  // A lease that was requested belongs to no thread: another one may end it.
  PendingLease pending = runtime->request(tensor, Access::modify);
  std::optional<Result<Lease>> requested;
  while (!requested) requested = pending.poll();
  std::thread ender([lease = std::move(*requested)]() mutable { lease->end(); });
  EXPECT_TRUE(runtime->acquire(tensor, Access::modify));
  ender.join();
}

}  // namespace
}  // namespace penstock::swap
