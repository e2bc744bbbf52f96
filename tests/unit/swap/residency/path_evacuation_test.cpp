#include "swap/residency/path_evacuation.hpp"

#include "unit/swap/residency/residency_fixture.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cerrno>
#include <vector>

// What becomes of tensors when a path fails, decided without a disk.

namespace penstock::swap {
namespace {

using test::ResidencyFixture;
using tiers::TensorId;
using Kind = ResidencyFixture::Effect::Kind;

/// Two paths, eight tensors on disk only, half of them on each.
class PathEvacuationTest : public testing::Test, protected ResidencyFixture {
 protected:
  PathEvacuationTest()
      : ResidencyFixture(
            {.paths = {{.capacity = 8_MiB, .reserved = 8_MiB}, {.capacity = 8_MiB, .reserved = 8_MiB}}}) {
    for (int i = 0; i < 8; ++i) all.push_back(stored(8_KiB, /*retain=*/false));
  }
  [[nodiscard]] std::vector<TensorId> on(std::uint32_t path) const { return tensors.in_extents_of(path); }
  /// Writes `tensor`, and has the first `failures` stores of it fail.
  void write(TensorId tensor, int failures, const Error& error = Error(ErrorCode::io, "test")) {
    acquire(tensor, Access::overwrite);
    while (!effects.empty()) {
      const Effect effect = take_effect();
      const bool fails = effect.tensor == tensor && effect.kind == Kind::store && failures-- > 0;
      finish(effect, fails ? Result<void>(error) : ok());
    }
  }
  void retire_first_path() {
    const TensorId there = on(0).front();
    for (int i = 0; i < 3; ++i) residency.note_corrupted(there, Error(ErrorCode::corrupted, "test"));
  }
  [[nodiscard]] bool reported(std::string_view words) {
    for (std::string& line : residency.take_messages()) messages += line.append("\n");
    return messages.find(words) != std::string::npos;
  }

  std::vector<TensorId> all;
  std::string messages;
};

TEST_F(PathEvacuationTest, StoresElsewhereWhatOnePathDidNotTake) {
  const TensorId tensor = on(0).front();

  write(tensor, 1);

  EXPECT_TRUE(tensors.stored(tensor));
  EXPECT_EQ(tensors.description(tensor).extent->path, 1u);
  EXPECT_TRUE(reported("is stored elsewhere"));
  EXPECT_TRUE(extents.in_use(0));
  EXPECT_FALSE(residency.store_failed());
}

TEST_F(PathEvacuationTest, DoesNotRetireAPathForWantOfMemoryOrThreads) {
  for (const int cause : {ENOMEM, EAGAIN, ECANCELED, EINTR}) {
    const TensorId tensor = on(0).front();
    const RequestId id = request(tensor, Access::read);
    finish(take_effect(), Error::from_errno("test", cause));
    EXPECT_FALSE(*residency.take(id));
    write(tensor, 1, Error::from_errno("test", cause));
    EXPECT_EQ(tensors.description(tensor).extent->path, 1u) << cause;
  }
  EXPECT_EQ(extents.fault_count(0), 0u);
  EXPECT_TRUE(extents.in_use(0));
}

/// A commit gives its copies up when one cannot be written, and writes them again at the next one.
TEST_F(PathEvacuationTest, StoresAgainWhatWasDiscardedWhileItsStoresFailed) {
  const TensorId tensor = on(0).front();
  const Error error(ErrorCode::io, "test");
  acquire(tensor, Access::overwrite);
  finish(take_effect(), error);  // elsewhere now
  ASSERT_EQ(effects.front().place.path, 1u);
  residency.discard(tensor);
  finish(take_effect(), error);
  const TensorId other = on(1).front();
  for (int i = 0; i < 3; ++i) residency.note_corrupted(other, Error(ErrorCode::corrupted, "test"));
  run();
  ASSERT_FALSE(extents.in_use(1));

  acquire(tensor, Access::overwrite);
  run();

  EXPECT_TRUE(tensors.stored(tensor));
  EXPECT_TRUE(residency.all_stored());
}

TEST_F(PathEvacuationTest, RetiresAPathAtItsThirdFaultAndMovesWhatIsThereOneAtATime) {
  retire_first_path();
  residency.advance();

  EXPECT_FALSE(extents.in_use(0));
  while (!effects.empty()) {
    ASSERT_EQ(effects.size(), 1u);
    if (effects.front().kind == Kind::load) {
      EXPECT_TRUE(effects.front().verify);
    }
    finish(take_effect());
  }
  EXPECT_TRUE(on(0).empty());
  EXPECT_TRUE(reported("retired after fault number 3"));
  EXPECT_TRUE(reported("is evacuated: 32.0 KiB moved")) << messages;
  EXPECT_EQ(budget.free(), budget.size());  // an evacuated tensor does not stay in memory
}

TEST_F(PathEvacuationTest, KeepsAnExtentThatIsPinnedWhileItsTensorIsMoved) {
  retire_first_path();
  residency.advance();
  const TensorId tensor = effects.front().tensor;
  const tiers::Extent own = *tensors.description(tensor).extent;
  finish(take_effect());
  ASSERT_EQ(effects.front().kind, Kind::store);

  ASSERT_TRUE(residency.pin_extent(tensor, 1));

  run();
  EXPECT_TRUE(on(0).empty());
  EXPECT_TRUE(extents.pinned(own));
  EXPECT_FALSE(extents.pinned(*tensors.description(tensor).extent));
}

TEST_F(PathEvacuationTest, RefusesToPinAnExtentThatIsWritten) {
  const TensorId tensor = on(0).front();
  acquire(tensor, Access::overwrite);
  ASSERT_EQ(effects.front().place, *tensors.description(tensor).extent);

  EXPECT_FALSE(residency.pin_extent(tensor, 1));

  run();
  EXPECT_TRUE(residency.pin_extent(tensor, 1));
}

TEST_F(PathEvacuationTest, MovesWhatHasItsHomeInMemoryAndKeepsItThere) {
  std::vector<TensorId> homes;
  for (int i = 0; i < 4; ++i) {
    homes.push_back(add(8_KiB, {.write_behind = true, .home_in_memory = true}).value());
    acquire(homes.back(), Access::overwrite);
  }
  ASSERT_TRUE(
      std::ranges::any_of(homes, [&](TensorId home) { return tensors.description(home).extent->path == 0; }));

  retire_first_path();
  residency.advance();
  run();

  EXPECT_TRUE(on(0).empty());
  EXPECT_TRUE(reported("is evacuated"));
  for (const TensorId home : homes) EXPECT_TRUE(in_memory(home));
}

TEST_F(PathEvacuationTest, RetiresAPathAtOnceWhenAWriteHangs) {
  write(on(0).front(), 1, Error(ErrorCode::deadline_exceeded, "test"));
  run();

  EXPECT_FALSE(extents.in_use(0));
  EXPECT_TRUE(on(0).empty());
}

TEST_F(PathEvacuationTest, CountsAFullDiskAsNoFault) {
  for (int i = 0; i < 5; ++i) {
    const auto there = on(0);
    if (!there.empty()) write(there.front(), 1, Error(ErrorCode::no_space, "test"));
  }

  EXPECT_TRUE(extents.in_use(0));
  const auto lines = residency.take_messages();
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [](const auto& line) { return line.find("elsewhere") != std::string::npos; }),
            1);
}

TEST_F(PathEvacuationTest, KeepsTheLastPathInUse) {
  retire_first_path();
  run();
  for (int i = 0; i < 5; ++i) {
    write(all.front(), 1);
    ASSERT_TRUE(residency.take_store_error());
    run();
  }

  EXPECT_TRUE(extents.in_use(1));
  EXPECT_TRUE(tensors.stored(all.front()));
}

TEST_F(PathEvacuationTest, ReportsTheStoreThatNoPathTakes) {
  const TensorId tensor = on(0).front();

  write(tensor, 2);

  ASSERT_TRUE(residency.take_store_error());
  run();
  EXPECT_TRUE(tensors.stored(tensor));
}

TEST_F(PathEvacuationTest, NamesWhatCannotBeReadAndMovesTheRest) {
  const TensorId lost = on(0).back();
  const std::string name = tensors.description(lost).name;
  retire_first_path();
  residency.advance();
  while (!effects.empty()) {
    const Effect effect = take_effect();
    finish(effect, effect.tensor == lost ? Result<void>(Error(ErrorCode::corrupted, "test")) : ok());
  }

  EXPECT_EQ(on(0), std::vector{lost});
  EXPECT_TRUE(reported("cannot be read: " + name)) << messages;
  write(lost, 0);  // new contents do not need the path
  EXPECT_TRUE(on(0).empty());
}

TEST_F(PathEvacuationTest, MovesWhatWasBeingStoredWhenThePathWasRetired) {
  const TensorId late = on(0).back();
  acquire(late, Access::overwrite);
  const Effect store = take_effect();
  ASSERT_EQ(store.place.path, 0u);
  retire_first_path();
  run();
  EXPECT_EQ(on(0), std::vector{late});

  finish(store);
  run();

  EXPECT_TRUE(on(0).empty());
  EXPECT_TRUE(reported("is evacuated"));
}

TEST_F(PathEvacuationTest, MovesWhatALeaseThatWasCancelledLeftUntouched) {
  const TensorId there = on(0).front();
  const RequestId id = residency.request(there, Access::modify, Use::unrecorded);
  run();
  retire_first_path();

  residency.cancel(id, there, Access::modify);
  run();

  EXPECT_TRUE(on(0).empty());
  EXPECT_EQ(tensors.copy(there).version, 0u);
  EXPECT_TRUE(tensors.stored(there));
}

TEST_F(PathEvacuationTest, LeavesWhereTheyAreTensorsThatFindNoOtherRoom) {
  ResidencyFixture full(
      {.paths = {{.capacity = 16_KiB, .reserved = 16_KiB}, {.capacity = 16_KiB, .reserved = 16_KiB}}});
  std::vector<TensorId> four;
  for (int i = 0; i < 4; ++i) four.push_back(full.stored(8_KiB, false));
  for (int i = 0; i < 3; ++i) {
    full.residency.note_corrupted(full.tensors.in_extents_of(0).front(), Error(ErrorCode::corrupted, "test"));
  }
  full.run();

  EXPECT_EQ(full.tensors.in_extents_of(0).size(), 2u);
  for (const TensorId tensor : four) full.acquire(tensor, Access::modify);
  full.run();
  EXPECT_TRUE(full.residency.all_stored());
  EXPECT_FALSE(full.residency.store_failed());
}

TEST_F(PathEvacuationTest, ForgetsTheTensorThatIsBeingMoved) {
  const TensorId there = on(0).front();
  retire_first_path();
  residency.advance();
  ASSERT_EQ(effects.front().tensor, there);
  const Effect load = take_effect();

  residency.forget(there);
  finish(load);
  residency.forget(there);
  (void)residency.remove(there);
  run();

  EXPECT_TRUE(on(0).empty());
}

}  // namespace
}  // namespace penstock::swap
