#include "unit/swap/runtime_fixture.hpp"

#include "kit/pattern.hpp"
#include "kit/scratch_directory.hpp"

#include "swap/runtime_internals.hpp"
#include "tiers/io/thread_pool_engine.hpp"

#include <gtest/gtest.h>
#include <cerrno>
#include <vector>

namespace penstock::swap {
namespace {

using penstock::test::Pattern;
using test::add;
using test::holds;
using test::Simulation;
using test::write;
using tiers::TensorId;

TEST(Runtime, ReturnsTheErrorOfAFailedStoreOnceAndStoresTheTensorAgain) {
  Simulation simulation({.host_budget = 96_KiB});
  Runtime& runtime = *simulation.runtime;
  const TensorId tensor = add(runtime, 40_KiB), other = add(runtime, 80_KiB);
  simulation.fail_requests(1);
  write(runtime, tensor, 1);

  auto failed = runtime.flush();
  auto drained = runtime.flush();

  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::io);
  EXPECT_NE(failed.error().message().find("tensor stays in memory, not yet stored"), std::string::npos)
      << failed.error().message();
  EXPECT_TRUE(drained);
  write(runtime, other, 1);  // evicts it
  EXPECT_TRUE(holds(runtime, tensor, 1));
}

TEST(Runtime, ReturnsTheErrorOfAFailedStoreToEachCallThatWaitedForIt) {
  Simulation simulation({.host_budget = 64_KiB});
  Runtime& runtime = *simulation.runtime;
  const RuntimeInternals internals(runtime);
  const TensorId home = runtime
                            .add({.name = "at home",
                                  .key = test::next_key(),
                                  .size = 4_KiB,
                                  .write_behind = true,
                                  .home_in_memory = true},
                                 /*on_disk=*/true)
                            .value();
  write(runtime, home, 1);
  simulation.fail_requests(1);
  const std::vector<TensorId> asked = {home};
  internals.begin_stores(asked);

  const auto flushed = runtime.flush();  // while that store is in flight
  const auto ended = internals.end_stores(asked);

  for (const auto& stored : {flushed, ended}) {
    ASSERT_FALSE(stored);
    EXPECT_NE(stored.error().message().find("at home stays in memory, not yet stored"), std::string::npos)
        << stored.error().message();
  }
  EXPECT_TRUE(runtime.flush());
}

TEST(Runtime, ReturnsTheErrorOfAFailedStoreBeforeItGrantsALease) {
  Simulation simulation({.host_budget = 64_KiB});
  Runtime& runtime = *simulation.runtime;
  const TensorId tensor = add(runtime, 4_KiB);
  simulation.fail_requests(1);
  write(runtime, tensor, 1);
  simulation.run();

  EXPECT_EQ(runtime.acquire(tensor, Access::read).error().code(), ErrorCode::io);
  EXPECT_TRUE(holds(runtime, tensor, 1));
}

TEST(Runtime, StoresATensorAgainAfterAnotherFailedTensorWasRemoved) {
  penstock::test::ScratchDirectory directory;
  const auto make_engine = [](const tiers::File::Properties&) -> Result<std::unique_ptr<tiers::IoEngine>> {
    return std::make_unique<tiers::FaultEngine>(
        tiers::create_thread_pool_engine({}).value(),
        tiers::FaultPlan{tiers::Fault::fail(tiers::IoOperation::write, 0, ENODEV, 2)});
  };
  auto runtime =
      Runtime::create(
          {.host_budget = 1_MiB,
           .paths = {{.directory = directory.path(), .capacity = 1_MiB, .make_engine = make_engine}}})
          .value();
  const TensorId removed = add(*runtime, 4_KiB), stays = add(*runtime, 4_KiB);
  {
    // Both are acquired before a store has failed: an acquire would return its error.
    Lease first = runtime->acquire(removed, Access::overwrite).value();
    Lease second = runtime->acquire(stays, Access::overwrite).value();
    for (const auto& [tensor, lease] : {std::pair(removed, &first), std::pair(stays, &second)}) {
      Pattern{.tensor = static_cast<std::uint64_t>(tensor), .generation = 1}.fill(lease->bytes());
    }
  }
  runtime->wait_for_stores(0);  // both have failed

  runtime->remove(removed).value();

  (void)runtime->flush();  // the store may have failed after the removal; its error is returned once
  EXPECT_TRUE(runtime->flush());
  EXPECT_TRUE(holds(*runtime, stays, 1));
}

TEST(Runtime, ChangesNothingInAnAcquireThatReturnsTheErrorOfAFailedStore) {
  Simulation simulation({.host_budget = 64_KiB});
  Runtime& runtime = *simulation.runtime;
  const TensorId tensor = add(runtime, 40_KiB), dirty = add(runtime, 40_KiB, true, /*write_behind=*/false);
  write(runtime, tensor, 1);
  ASSERT_TRUE(runtime.flush());
  write(runtime, dirty, 2);  // evicts it
  simulation.fail_requests(3);

  auto failed =
      runtime.acquire(tensor, Access::overwrite);  // needs the memory of the tensor that cannot be stored

  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::io);
  simulation.run();
  EXPECT_TRUE(holds(runtime, tensor, 1));
  EXPECT_TRUE(holds(runtime, dirty, 2));
}

TEST(Runtime, CountsAnAcquireThatIsRepeatedAfterAFailedStoreAsOneUse) {
  Simulation simulation({.host_budget = 64_KiB});
  Runtime& runtime = *simulation.runtime;
  const TensorId tensor = add(runtime, 40_KiB), next = add(runtime, 8_KiB);
  for (const TensorId each : {tensor, next}) write(runtime, each, 1);
  for (const TensorId each : {tensor, next}) ASSERT_TRUE(holds(runtime, each, 1, Use::recorded));
  runtime.end_round();
  const TensorId dirty = add(runtime, 40_KiB, true, /*write_behind=*/false);
  write(runtime, dirty, 2);
  (void)add(runtime, 24_KiB, /*on_disk=*/false);  // the rest of the memory
  ASSERT_FALSE(runtime.in_memory(tensor));
  ASSERT_FALSE(runtime.in_memory(next));
  simulation.fail_requests(3);

  auto failed = runtime.acquire(tensor, Access::read);
  ASSERT_EQ(failed.error().code(), ErrorCode::io);
  runtime.acquire(tensor, Access::read).value().end();
  simulation.run();

  EXPECT_TRUE(runtime.in_memory(next));  // the order of uses is still the predicted one
}

}  // namespace
}  // namespace penstock::swap
