#include "swap/residency/host_residency.hpp"

#include "unit/swap/residency/residency_fixture.hpp"

#include <gtest/gtest.h>
#include <cstddef>
#include <span>
#include <thread>
#include <vector>

// What leaves 64 KiB of memory so that a request gets room, and when.

namespace penstock::swap {
namespace {

using test::ResidencyFixture;
using tiers::TensorId;
using Kind = ResidencyFixture::Effect::Kind;

class MakeRoomTest : public testing::Test, protected ResidencyFixture {
 protected:
  MakeRoomTest() : ResidencyFixture({}) {}
  using Tensors = std::vector<TensorId>;
};

TEST_F(MakeRoomTest, EvictsNothingWhereThatMakesNoRoom) {
  const TensorId wanted = stored(40_KiB, /*retain=*/false), first = stored(16_KiB), held = stored(16_KiB),
                 last = stored(16_KiB);
  lease(held);  // at 16 KiB: no gap has 40 KiB
  ASSERT_TRUE(in_memory(first) && in_memory(last));

  const RequestId id = request(wanted, Access::read);

  EXPECT_FALSE(residency.take(id));
  EXPECT_TRUE(in_memory(first) && in_memory(last));
  residency.release(held, Access::read);
  residency.advance();
  run();
  EXPECT_TRUE(residency.take(id).value());
}

// A later request cannot take them while the dirty ones are stored.
TEST_F(MakeRoomTest, DropsCleanCopiesAndStoresAllDirtyOnesAtOnce) {
  const TensorId clean = stored(16_KiB), one = dirty(16_KiB), other = dirty(32_KiB);
  drops.clear();

  const RequestId id = request(add(64_KiB).value(), Access::overwrite);

  ASSERT_EQ(effects.size(), 2u);
  EXPECT_EQ(effects[0].kind, Kind::store);
  EXPECT_EQ(effects[1].kind, Kind::store);
  EXPECT_EQ(drops, Tensors{clean});
  finish(take_effect());
  EXPECT_FALSE(residency.take(id));
  finish(take_effect());
  EXPECT_TRUE(residency.take(id).value());
  EXPECT_FALSE(in_memory(clean) || in_memory(one) || in_memory(other));
}

// The one that is stored is used last, so that it is to leave, although that takes a while.
TEST_F(MakeRoomTest, WaitsForWhatItStoresRatherThanEvictWhatIsUsedSooner) {
  const TensorId wanted = stored(32_KiB, false), sooner = stored(32_KiB), later = dirty(32_KiB);
  using enum Access;
  residency.predict({{sooner, read}, {wanted, read}, {sooner, read}, {sooner, read}, {later, read}});
  use(sooner);
  const RequestId id = residency.request(wanted, Access::read, Use::recorded);
  residency.advance();
  ASSERT_EQ(effects.size(), 1u);
  EXPECT_EQ(effects.front().tensor, later);
  residency.advance();
  EXPECT_TRUE(in_memory(sooner));

  run();

  EXPECT_TRUE(residency.take(id).value());
  EXPECT_TRUE(in_memory(sooner));
  EXPECT_FALSE(in_memory(later));
}

// The call of a thread that has a grant, so that it must go on, behind a request for which there is no room.
TEST_F(MakeRoomTest, StoresForTheCallInWhichAThreadBlocks) {
  const TensorId idle = dirty(16_KiB), held = stored(16_KiB);
  lease(held);
  const auto ask = [&](ByteCount size, bool blocks) {
    const RequestId id = residency.request(add(size).value(), Access::overwrite, Use::unrecorded,
                                           {.thread = std::this_thread::get_id(), .blocks = blocks});
    residency.advance();
    return id;
  };
  const RequestId granted = ask(32_KiB, false), waiting = ask(48_KiB, false), call = ask(16_KiB, true);
  ASSERT_TRUE(effects.empty());

  EXPECT_TRUE(residency.fail_starved_request());
  ASSERT_EQ(effects.size(), 1u);
  EXPECT_EQ(effects.front().tensor, idle);
  run();
  while (residency.fail_starved_request()) residency.advance();

  EXPECT_TRUE(residency.take(call).value());
  EXPECT_TRUE(residency.take(granted).value());
  EXPECT_FALSE(residency.take(waiting));
}

TEST_F(MakeRoomTest, TakesWhatACopyAcrossALimitHasBelowIt) {
  const TensorId wanted = stored(56_KiB, false), ahead = stored(16_KiB, false), below = stored(40_KiB);
  residency.prefetch(ahead);
  residency.advance();
  ASSERT_EQ(effects.size(), 1u);  // it is loaded to the end of the memory
  residency.limit_memory(56_KiB);
  run();
  ASSERT_TRUE(in_memory(ahead) && in_memory(below));

  const RequestId id = request(wanted, Access::read);
  run();

  EXPECT_TRUE(residency.take(id).value());
}

TEST_F(MakeRoomTest, DoesNotWaitForWhatIsStoredFromOutside) {
  std::vector<std::byte> bytes(8192);
  const TensorId outside = add(8_KiB, {.stored_from_outside = true}).value(), clean = stored(64_KiB);
  residency.store_from(outside, HostSpan(std::span(bytes)));
  residency.advance();
  ASSERT_EQ(effects.size(), 1u);

  EXPECT_TRUE(residency.take(request(add(64_KiB).value(), Access::overwrite)).value());

  EXPECT_FALSE(in_memory(clean));
  run();
}

TEST_F(MakeRoomTest, ForgetsWhatItStoredForARequestThatIsGoneAndWhatIsRemoved) {
  const TensorId removed = dirty(32_KiB), kept = dirty(32_KiB), wanted = add(64_KiB).value();
  const RequestId first = request(wanted, Access::overwrite);
  ASSERT_EQ(effects.size(), 2u);
  run();
  EXPECT_TRUE(residency.take(first).value());
  residency.release(wanted, Access::overwrite);
  residency.advance();
  const RequestId second = request(kept, Access::read);  // stores `wanted`
  residency.cancel(second, kept, Access::read);
  run();
  ASSERT_TRUE(in_memory(wanted));
  residency.forget(removed);
  (void)residency.remove(removed);

  EXPECT_TRUE(residency.take(request(wanted, Access::read)).value());  // it has stayed
}

}  // namespace
}  // namespace penstock::swap
