#include "unit/swap/residency/read_ahead_fixture.hpp"

#include <gtest/gtest.h>

// What is read ahead waits for a store that will leave room, where that is enough.

namespace penstock::swap {
namespace {

using test::ReadAhead;
using tiers::TensorId;

/// `kept` is in memory, `changed` is being stored, and `next` is to be read ahead.
struct ReadAheadBesideAStore : ReadAhead {
  void create(ByteCount size_of_kept, ByteCount size_of_changed, ByteCount size_of_next) {
    changed = stored(size_of_changed, retain_changed);
    next = stored(size_of_next, retain_next);
    kept = stored(size_of_kept);
    rehearse({changed, next, kept});
  }
  /// With a lease of `kept`, which ends once the store has begun: nothing is evicted before.
  void begin() {
    lease(changed, Access::modify, Use::recorded);
    residency.release(changed, Access::modify);
    residency.advance();
    residency.prefetch(next);
    residency.release(kept, Access::read);
    residency.advance();
  }
  void begin(ByteCount size_of_kept, ByteCount size_of_changed, ByteCount size_of_next) {
    create(size_of_kept, size_of_changed, size_of_next);
    lease(kept);
    begin();
  }
  bool retain_changed = false, retain_next = false;
  TensorId changed{}, next{}, kept{};
};

TEST_F(ReadAheadBesideAStore, WaitsForItRatherThanEvict) {
  begin(32_KiB, 24_KiB, 24_KiB);
  EXPECT_EQ(effects.size(), 1u) << "the store";
  run();
  EXPECT_TRUE(in_memory(next));
  EXPECT_TRUE(in_memory(kept));
}

TEST_F(ReadAheadBesideAStore, EvictsWhereThatMakesTooLittleRoom) {
  begin(32_KiB, 8_KiB, 40_KiB);
  EXPECT_FALSE(in_memory(kept));
  run();
  EXPECT_TRUE(in_memory(next));
}

TEST_F(ReadAheadBesideAStore, EvictsWhereWhatIsStoredStays) {
  retain_changed = true;
  begin(32_KiB, 24_KiB, 24_KiB);
  EXPECT_FALSE(in_memory(kept));
}

TEST_F(ReadAheadBesideAStore, EvictsForWhatStaysItself) {
  retain_next = true;
  begin(32_KiB, 24_KiB, 24_KiB);
  EXPECT_FALSE(in_memory(kept));
}

// 4 KiB are free, then come `kept`, 28 that stay, 8 that are free, and `changed`.
TEST_F(ReadAheadBesideAStore, EvictsWhereTheGapsStayTooShort) {
  create(16_KiB, 8_KiB, 20_KiB);
  const TensorId low = in_memory_only(4_KiB);
  acquire(low, Access::overwrite);
  lease(kept);
  acquire(in_memory_only(28_KiB), Access::overwrite);
  remove(low);
  begin();
  EXPECT_FALSE(in_memory(kept));
  run();
  EXPECT_TRUE(in_memory(next));
}

}  // namespace
}  // namespace penstock::swap
