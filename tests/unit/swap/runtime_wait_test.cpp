#include "swap/runtime_internals.hpp"
#include "swap/transfer/transfer_engine.hpp"
#include "unit/swap/runtime_fixture.hpp"

#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace penstock::swap {
namespace {

using test::add;
using test::holds;
using test::Simulation;
using test::write;
using tiers::TensorId;

/// A runtime in which the first store of `tensor` fails.
struct RuntimeWait : testing::Test {
  RuntimeWait() {
    simulation.fail_requests(1);
    write(runtime, tensor, 1);
  }

  Simulation simulation{{.host_budget = 64_KiB}};
  Runtime& runtime = *simulation.runtime;
  const TensorId tensor = add(runtime, 4_KiB);
};

TEST_F(RuntimeWait, ReturnsTheErrorOfAFailedStoreOnce) {
  const auto failed = RuntimeInternals(runtime).wait_until([] { return false; });

  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::io);
  EXPECT_TRUE(runtime.check_stores());
  EXPECT_TRUE(runtime.flush());  // the tensor is stored again
  EXPECT_TRUE(holds(runtime, tensor, 1));
}

TEST_F(RuntimeWait, ReturnsNoErrorIfItsConditionHolds) {
  simulation.run();

  EXPECT_TRUE(RuntimeInternals(runtime).wait_until([] { return true; }));

  EXPECT_FALSE(runtime.check_stores());
}

TEST_F(RuntimeWait, KeepsTheErrorForTheNextCallIfItIgnoresStores) {
  RuntimeInternals(runtime).wait_ignoring_stores([&] { return RuntimeInternals(runtime).store_failed(); });

  const auto failed = runtime.check_stores();

  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::io);
  EXPECT_TRUE(runtime.check_stores());
}

TEST_F(RuntimeWait, CountsAsStallTime) {
  EXPECT_EQ(runtime.stall_time(), TimePoint{});

  EXPECT_FALSE(runtime.flush());  // waits for the store that fails

  EXPECT_GT(runtime.stall_time(), TimePoint{});
}

TEST(RuntimeWake, MakesTheMoverPollAMove) {
  std::atomic<bool> polled = false, may_end = false;
  class WaitingHop final : public Hop {
   public:
    WaitingHop(std::atomic<bool>& polled, const std::atomic<bool>& may_end)
        : polled_(polled), may_end_(may_end) {}
    Result<void> start() override { return ok(); }
    Result<HopState> poll() override {
      const bool ends = may_end_;
      polled_ = true;
      polled_.notify_one();
      return ends ? HopState::done : HopState::pending;
    }

   private:
    std::atomic<bool>& polled_;
    const std::atomic<bool>& may_end_;
  };
  auto runtime = Runtime::create({.host_budget = 2_MiB}).value();
  bool done = false;
  Move move;
  move.then(std::make_unique<WaitingHop>(polled, may_end));
  move.on_event = [&](HopState, const Result<void>&) { done = true; };
  RuntimeInternals(*runtime).start(std::move(move));
  polled.wait(false);

  may_end = true;
  RuntimeInternals(*runtime).wake();

  EXPECT_TRUE(RuntimeInternals(*runtime).wait_until([&] { return done; }));
}

TEST(RuntimeWake, DoesNotWakeThreadsThatWaitWhenAPollChangesNothing) {
  class PolledHop final : public Hop {
   public:
    Result<void> start() override { return ok(); }
    Result<HopState> poll() override { return ++polls_ < 200 ? HopState::pending : HopState::done; }
    TimePoint poll_interval() const override { return std::chrono::microseconds(20); }

   private:
    int polls_ = 0;
  };
  auto runtime = Runtime::create({.host_budget = 2_MiB}).value();
  bool done = false;
  int evaluations = 0;
  Move move;
  move.then(std::make_unique<PolledHop>());
  move.on_event = [&](HopState, const Result<void>&) { done = true; };
  RuntimeInternals(*runtime).start(std::move(move));

  RuntimeInternals(*runtime).wait_ignoring_stores([&] {
    ++evaluations;
    return done;
  });

  EXPECT_LT(evaluations, 20);
}

/// Takes two leases that it requests together, as the copy of a gradient does.
class TwoLeasesHop final : public Hop {
 public:
  TwoLeasesHop(RuntimeInternals runtime, TensorId first, TensorId second)
      : runtime_(runtime), first_(first), second_(second) {}
  Result<void> start() override {
    pending_[0] = runtime_.request_for_mover(first_, Access::modify);
    pending_[1] = runtime_.request_for_mover(second_, Access::overwrite, Use::unrecorded);
    return ok();
  }
  bool is_blocked() const override { return true; }
  Result<HopState> poll() override {
    for (std::size_t i : {0u, 1u}) {
      auto granted = pending_[i].poll();
      if (!granted) continue;
      PENSTOCK_TRY_ASSIGN(leases_[i], *std::move(granted));
    }
    return pending_[0].pending() || pending_[1].pending() ? HopState::pending : HopState::done;
  }

 private:
  RuntimeInternals runtime_;
  const TensorId first_, second_;
  std::array<PendingLease, 2> pending_;
  std::array<Lease, 2> leases_;
};

// The mover itself finds that the second request starves, after it has polled the hop.
TEST(RuntimeWake, PollsAHopWhoseRequestHasFailedInThatPoll) {
  const penstock::test::ScratchDirectory directory;
  auto runtime =
      Runtime::create({.host_budget = 4_MiB, .paths = {{.directory = directory.path(), .capacity = 16_MiB}}})
          .value();
  const auto add = [&](const char* name, std::uint32_t unit, tiers::TensorDescription with, bool on_disk) {
    with.name = name;
    with.key = {.unit = unit};
    return runtime->add(with, on_disk).value();
  };
  const TensorId stored = add("stored", 1,
                              {.size = 1_MiB, .write_behind = true, .retain = false, .sealed_in_pass = true},
                              true),
                 second = add("second", 2, {.size = 1_MiB, .transient = true}, false),
                 large = add("large", 3, {.size = 2560_KiB, .transient = true}, false);
  runtime->acquire(stored, Access::overwrite).value().end();
  ASSERT_TRUE(runtime->flush());
  const Lease held = runtime->acquire(large, Access::overwrite).value();
  const RuntimeInternals internals(*runtime);
  std::optional<ErrorCode> code;
  Move move;
  move.then(std::make_unique<TwoLeasesHop>(internals, stored, second));
  move.on_event = [&](HopState, const Result<void>& result) {
    code = result ? ErrorCode::io : result.error().code();
  };
  internals.start(std::move(move));

  internals.wait_ignoring_stores([&] { return code.has_value(); });

  EXPECT_EQ(code, ErrorCode::budget_too_small);
}

TEST(RuntimeExecutor, IsTheOneOfTheOptions) {
  class Counting final : public Executor {
   public:
    void post(std::function<void()> task) override {
      ++posted;
      task();
    }
    int posted = 0;
  } executor;
  auto runtime = Runtime::create({.host_budget = 2_MiB, .executor = &executor}).value();
  bool ran = false;

  RuntimeInternals(*runtime).executor().post([&] { ran = true; });

  EXPECT_TRUE(ran);
  EXPECT_EQ(executor.posted, 1);
}

TEST(RuntimeExecutor, RunsTasksAtOnceIfTheOptionsHaveNone) {
  auto runtime = Runtime::create({.host_budget = 2_MiB}).value();
  bool ran = false;

  RuntimeInternals(*runtime).executor().post([&] { ran = true; });

  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace penstock::swap
