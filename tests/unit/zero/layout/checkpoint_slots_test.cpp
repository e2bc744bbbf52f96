#include "zero/layout/checkpoint_slots.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace penstock::zero {
namespace {

/// Runs steps of a forward that writes checkpoints and a backward that reads them in the reverse order, and records
/// what moves: "-n" leaves its slot with its contents, "+n" is loaded when it is used, "*n" ahead of its use.
class Steps {
 public:
  Steps(std::uint32_t checkpoints, std::uint32_t slots) : slots_(checkpoints, slots), written_(checkpoints) {}

  std::string run() {
    moves_.clear();
    const auto count = static_cast<std::uint32_t>(written_.size());
    for (std::uint32_t i = 0; i < count; ++i) use(i, CheckpointSlots::Contents::undefined);
    for (std::uint32_t i = count; i-- > 0;) {
      use(i, CheckpointSlots::Contents::loaded);
      written_[i] = false;  // its last use
    }
    for (const auto occupant : std::vector(slots_.occupants())) {
      if (occupant) slots_.remove(*occupant, false);
    }
    slots_.end_step();
    return moves_;
  }

 private:
  void use(std::uint32_t checkpoint, CheckpointSlots::Contents needs) {
    slots_.note_use(checkpoint, needs);
    if (!slots_.slot_of(checkpoint)) {
      take(checkpoint, *slots_.choose());
      if (needs == CheckpointSlots::Contents::loaded) moves_.append("+").append(std::to_string(checkpoint));
    }
    written_[checkpoint] = true;
    slots_.lease(checkpoint);
    while (const auto ahead = slots_.next_ahead([&](std::uint32_t i) { return written_[i]; })) {
      const auto slot = slots_.choose(ahead->uses + 1);
      if (!slot) break;
      take(ahead->checkpoint, *slot);
      moves_.append("*").append(std::to_string(ahead->checkpoint));
    }
    slots_.release(checkpoint);
  }
  void take(std::uint32_t checkpoint, std::uint32_t slot) {
    if (const auto occupant = slots_.occupants()[slot]) {
      if (written_[*occupant]) moves_.append("-").append(std::to_string(*occupant));
      slots_.remove(*occupant, written_[*occupant]);
    }
    slots_.place(checkpoint, slot);
  }

  CheckpointSlots slots_;
  std::vector<bool> written_;
  std::string moves_;
};

TEST(CheckpointSlots, MoveNothingWhereAllCheckpointsHaveOne) {
  Steps steps(4, 4);
  EXPECT_EQ(steps.run(), "");
  EXPECT_EQ(steps.run(), "");
}

TEST(CheckpointSlots, LoadAheadOnceTheOrderIsKnownAndMoveAsFewAsPossible) {
  Steps steps(6, 3);
  // The one used longest ago leaves in the first step.
  EXPECT_EQ(steps.run(), "-0-1-2+2+1+0");
  // Then those that are used last: the last three stay, and the others are loaded ahead.
  const std::string second = steps.run();
  EXPECT_EQ(second, "-0-1-2*2*1*0");
  EXPECT_EQ(steps.run(), second);
}

TEST(CheckpointSlots, RememberWhichHadToLeave) {
  CheckpointSlots slots(3, 1);
  EXPECT_TRUE(slots.is_expected_to_leave(0)) << "before a step has shown it";
  slots.place(0, 0);
  slots.remove(0, true);
  slots.place(1, 0);
  slots.remove(1, false);
  slots.end_step();

  EXPECT_TRUE(slots.is_expected_to_leave(0));
  EXPECT_FALSE(slots.is_expected_to_leave(1));
  EXPECT_FALSE(slots.is_expected_to_leave(2));
}

TEST(CheckpointSlots, GiveNoSlotOfALeasedCheckpoint) {
  CheckpointSlots slots(3, 2);
  for (const std::uint32_t checkpoint : {0u, 1u}) {
    slots.note_use(checkpoint, CheckpointSlots::Contents::undefined);
    slots.place(checkpoint, checkpoint);
    slots.lease(checkpoint);
  }
  EXPECT_EQ(slots.choose(), std::nullopt);
  slots.release(1);
  EXPECT_EQ(slots.choose(), 1u);
}

TEST(CheckpointSlots, FollowAStepThatDiffersFromTheNextOneOn) {
  CheckpointSlots slots(2, 1);
  const auto use = [&](std::uint32_t checkpoint) {
    slots.note_use(checkpoint, CheckpointSlots::Contents::loaded);
  };
  const auto ahead = [&] { return slots.next_ahead([](std::uint32_t) { return true; }).has_value(); };
  use(0), use(1), slots.end_step();

  EXPECT_TRUE(ahead());
  use(1);
  EXPECT_FALSE(ahead());
  use(0), slots.end_step();
  EXPECT_TRUE(ahead());
  use(0);
  EXPECT_FALSE(ahead());
  slots.abandon_step();
  EXPECT_TRUE(ahead()) << "an evaluation or a step that is abandoned is no prediction";
  use(1);
  EXPECT_TRUE(ahead());
  use(0), use(0);
  EXPECT_FALSE(ahead()) << "the step is longer than the last one";
}

TEST(CheckpointSlots, TakeTheSlotOfOneThatIsNotNeededFirst) {
  CheckpointSlots slots(4, 3);
  for (const std::uint32_t checkpoint : {0u, 1u, 2u}) {
    slots.note_use(checkpoint, CheckpointSlots::Contents::undefined);
    slots.place(checkpoint, checkpoint);
  }
  EXPECT_EQ(slots.choose(), 0u) << "the one used longest ago";
  slots.end_contents(1);
  EXPECT_EQ(slots.choose(), 1u);
  EXPECT_EQ(slots.choose(1000), 1u) << "for one that is loaded ahead too";
  slots.note_use(1, CheckpointSlots::Contents::undefined);
  EXPECT_EQ(slots.choose(), 0u) << "it has contents again";
}

}  // namespace
}  // namespace penstock::zero
