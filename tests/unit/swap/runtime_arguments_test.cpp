// What a caller passes to a runtime is judged where it enters: a refusal changes nothing.
#include "kit/pattern.hpp"
#include "kit/scratch_directory.hpp"
#include "swap/runtime_internals.hpp"
#include "unit/swap/runtime_fixture.hpp"

#include <gtest/gtest.h>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>

namespace penstock::swap {
namespace {

using test::add;
using test::holds;
using test::Simulation;
using test::write;
using tiers::TensorId;

class RuntimeArguments : public testing::Test {
 protected:
  void expect_refused(const std::function<Result<void>()>& call, const char* reason) {
    const auto refused = call();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message().find(reason), std::string::npos) << refused.error().message();
  }
  /// Every call with a tensor that the runtime does not have.
  void expect_refuses(TensorId tensor) {
    constexpr const char* reason = "this runtime has no such tensor";
    expect_refuses_to_use(tensor, reason);
    expect_refused([&] { return runtime_.prefetch(tensor); }, reason);
    expect_refused([&] { return Result<void>(RuntimeInternals(runtime_).corrupted(tensor, 0)); }, reason);
    EXPECT_EQ(runtime_.name(tensor), "");
    EXPECT_FALSE(runtime_.in_memory(tensor));
  }
  void expect_refuses_to_use(TensorId tensor, const char* reason) {
    expect_refused([&] { return runtime_.remove(tensor); }, reason);
    expect_refused([&] { return runtime_.discard(tensor); }, reason);
    expect_refused([&] { return runtime_.pin_extent(tensor, 1); }, reason);
    expect_refused(
        [&]() -> Result<void> {
          PENSTOCK_TRY(runtime_.acquire(tensor, Access::read));
          return ok();
        },
        reason);
    for (auto pending : {&Runtime::request, static_cast<decltype(&Runtime::request)>(nullptr)}) {
      PendingLease lease = pending != nullptr ? (runtime_.*pending)(tensor, Access::read, Use::recorded)
                                              : runtime_.announce(tensor, Access::read);
      lease.ask();
      EXPECT_TRUE(lease.pending());
      const auto outcome = lease.poll();
      ASSERT_TRUE(outcome);
      EXPECT_EQ(outcome->error().code(), ErrorCode::invalid_argument);
      EXPECT_FALSE(lease.pending());
    }
    runtime_.request(tensor, Access::read).cancel();
    runtime_.announce(tensor, Access::read).cancel();
  }

  Simulation simulation_{{.host_budget = 64_KiB}};
  Runtime& runtime_ = *simulation_.runtime;
};

TEST_F(RuntimeArguments, RefusesATensorThatWasNeverAdded) {
  (void)add(runtime_, 4_KiB);
  expect_refuses(TensorId{});
  expect_refuses(TensorId(~0u));
}

TEST_F(RuntimeArguments, RefusesATensorThatWasRemovedAlsoOnceAnotherHasItsPlace) {
  const TensorId removed = add(runtime_, 4_KiB);
  ASSERT_TRUE(runtime_.remove(removed));

  expect_refuses(removed);

  const TensorId first = add(runtime_, 4_KiB), second = add(runtime_, 4_KiB);
  EXPECT_NE(first, second);
  expect_refuses(removed);  // one of them has its place
  for (const TensorId tensor : {first, second}) write(runtime_, tensor, 1);
  for (const TensorId tensor : {first, second}) EXPECT_TRUE(holds(runtime_, tensor, 1));
}

TEST_F(RuntimeArguments, RefusesATensorWhileItIsRemoved) {
  const TensorId tensor = add(runtime_, 4_KiB);
  write(runtime_, tensor, 1);
  bool is_stored = true;
  simulation_.on_idle = [&] {
    if (!std::exchange(is_stored, false)) return;
    expect_refuses_to_use(tensor, "is being removed");
    expect_refused([&] { return runtime_.prefetch(tensor); }, "is being removed");
  };

  ASSERT_TRUE(runtime_.remove(tensor));

  EXPECT_FALSE(is_stored) << "remove() has waited";
  expect_refuses(tensor);
  const TensorId next = add(runtime_, 4_KiB);
  write(runtime_, next, 1);
  EXPECT_TRUE(holds(runtime_, next, 1));
}

TEST_F(RuntimeArguments, RefusesATensorOfAnotherRuntime) {
  Simulation other({.host_budget = 64_KiB});
  const TensorId own = add(runtime_, 4_KiB), first = add(*other.runtime, 4_KiB);

  expect_refuses(first);
  ASSERT_TRUE(runtime_.remove(own) && other.runtime->remove(first));
  (void)add(runtime_, 4_KiB);
  expect_refuses(add(*other.runtime, 4_KiB));  // in the same place, used as often
}

TEST_F(RuntimeArguments, RefusesTheTensorsOfAnEngineToOthers) {
  const RuntimeInternals engine(runtime_);
  const TensorId own = add(runtime_, 4_KiB);
  for (int turn = 0; turn < 3; ++turn) {
    const TensorId tensor =
        engine.add({.name = "an engine's", .key = test::next_key(), .size = 4_KiB}, /*on_disk=*/true).value();
    const penstock::test::Pattern pattern{.tensor = 1, .generation = 1};
    pattern.fill(engine.acquire(tensor, Access::overwrite).value().bytes());

    expect_refuses_to_use(tensor, "an engine's");
    expect_refuses_to_use(tensor, "the tensor is that of an engine");
    EXPECT_TRUE(runtime_.prefetch(tensor));

    PendingLease announced = engine.announce(tensor, Access::read);
    announced.ask();
    PendingLease requested = engine.request(tensor, Access::read);
    simulation_.run();
    for (PendingLease* const pending : {&announced, &requested}) {
      const auto lease = pending->poll();
      ASSERT_TRUE(lease && *lease);
      EXPECT_FALSE(pattern.first_difference((*lease)->bytes()));
    }
    ASSERT_TRUE(engine.discard(tensor) && engine.remove(tensor));
    const TensorId another = add(runtime_, 4_KiB);  // in its place
    for (const TensorId usable : {own, another}) {
      write(runtime_, usable, 1);
      EXPECT_TRUE(holds(runtime_, usable, 1));
    }
    ASSERT_TRUE(runtime_.remove(another));
  }
}

TEST_F(RuntimeArguments, RefusesToRemoveOrDiscardATensorThatIsInUse) {
  const TensorId tensor = add(runtime_, 4_KiB);
  write(runtime_, tensor, 1);
  const auto expect_in_use = [&] {
    expect_refused([&] { return runtime_.remove(tensor); }, "has a lease or a pending request");
    expect_refused([&] { return runtime_.discard(tensor); }, "has a lease or a pending request");
  };
  {
    const Lease lease = runtime_.acquire(tensor, Access::read).value();
    expect_in_use();
  }
  {
    const PendingLease announced = runtime_.announce(tensor, Access::read);
    expect_in_use();
  }
  EXPECT_TRUE(holds(runtime_, tensor, 1));
  EXPECT_TRUE(runtime_.discard(tensor));
  EXPECT_TRUE(runtime_.remove(tensor));
}

TEST(RuntimeCreate, RefusesWhatTheMachineCannotGiveAndEnginesThatAreNone) {
  for (const ByteCount budget : {ByteCount(~0ull), ByteCount(~0ull / 2), ByteCount(1ull << 50)}) {
    EXPECT_EQ(Runtime::create({.host_budget = budget}).error().code(), ErrorCode::no_space) << budget.value();
  }
  const penstock::test::ScratchDirectory directory;
  const auto refused = [&](const PathOptions& path) {
    const auto runtime = Runtime::create({.host_budget = 64_KiB, .paths = {path}});
    return runtime ? std::string() : runtime.error().message();
  };
  PathOptions path{.directory = directory.path(), .capacity = 1_MiB};
  path.make_engine = [](const tiers::File::Properties&) -> Result<std::unique_ptr<tiers::IoEngine>> {
    return nullptr;
  };
  EXPECT_NE(refused(path).find("make_engine"), std::string::npos) << refused(path);
  path.make_engine = nullptr;
  path.decorate = [](std::unique_ptr<tiers::IoEngine>) { return std::unique_ptr<tiers::IoEngine>(); };
  EXPECT_NE(refused(path).find("decorate"), std::string::npos) << refused(path);
}

TEST(RuntimeCreate, NamesThePathWithoutADirectory) {
  const penstock::test::ScratchDirectory directory;
  for (const ByteCount total : {0_B, 1_MiB}) {  // sizes given, and sizes that the runtime chooses
    const auto runtime = Runtime::create(
        {.host_budget = 64_KiB,
         .paths = {{.directory = directory.path(), .capacity = 1_MiB}, {.directory = "", .capacity = 1_MiB}},
         .swap_need = {.total = total, .tensor_max = 64_KiB}});
    ASSERT_FALSE(runtime);
    EXPECT_EQ(runtime.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(runtime.error().message().find("RuntimeOptions::paths[1].directory"), std::string::npos)
        << runtime.error().message();
  }
}

TEST(RuntimeCreate, RefusesTwoPathsInOneFile) {
  const penstock::test::ScratchDirectory directory;
  const PathOptions one{.directory = directory.path(), .capacity = 1_MiB, .file_name = "swap"};
  PathOptions other = one;
  other.directory = directory.path() / ".";
  const auto runtime = Runtime::create({.host_budget = 64_KiB, .paths = {one, other}});
  ASSERT_FALSE(runtime);
  EXPECT_NE(runtime.error().message().find("RuntimeOptions::paths[1].file_name"), std::string::npos)
      << runtime.error().message();
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  other.file_name = "other";
  EXPECT_TRUE(Runtime::create({.host_budget = 64_KiB, .paths = {one, other}}));
}

TEST_F(RuntimeArguments, RefusesToAddATensorOfAnySizeThatHasNoRoomOrWithAnExtentOfTheCaller) {
  for (const std::uint64_t bytes : {1ull << 48, ~0ull, ~0ull - 4095}) {
    for (const bool on_disk : {false, true}) {
      const auto refused =
          runtime_.add({.name = "huge", .key = test::next_key(), .size = ByteCount(bytes)}, on_disk);
      ASSERT_FALSE(refused) << bytes;
      EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small) << bytes;
    }
  }
  const auto refused = runtime_.add({.name = "placed",
                                     .key = test::next_key(),
                                     .size = 4_KiB,
                                     .extent = tiers::Extent{.path = 9, .length = 4_KiB}},
                                    false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  const TensorId tensor = add(runtime_, 4_KiB);
  write(runtime_, tensor, 1);
  EXPECT_TRUE(holds(runtime_, tensor, 1));
}

TEST_F(RuntimeArguments, SaysHowATensorThatStaysInMemoryGetsRoomBesideCopiesThatAreNotStored) {
  for (int i = 0; i < 16; ++i) write(runtime_, add(runtime_, 4_KiB, true, false), 1);
  const auto refused =
      runtime_.add({.name = "stays", .key = test::next_key(), .size = 8_KiB}, /*on_disk=*/false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small);
  EXPECT_NE(refused.error().message().find("add what stays in memory before"), std::string::npos)
      << refused.error().message();
}

TEST(RuntimeCreate, KeepsTheGivenMessagesBesideItsOwn) {
  const penstock::test::ScratchDirectory directory;
  tiers::SimDisk full({.capacity = 4_KiB});
  const auto runtime = Runtime::create({.host_budget = 64_KiB,
                                        .paths = {{.directory = directory.path(), .weight = 1},
                                                  {.directory = "full", .weight = 1, .file_system = &full}},
                                        .swap_need = {.total = 1_MiB, .tensor_max = 64_KiB},
                                        .messages = {"a note of the caller"}});
  ASSERT_TRUE(runtime) << runtime.error().message();

  const auto messages = (*runtime)->take_messages();
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0], "a note of the caller");
  EXPECT_NE(messages[1].find("full is not used"), std::string::npos) << messages[1];
}

}  // namespace
}  // namespace penstock::swap
