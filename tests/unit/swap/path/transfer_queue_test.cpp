#include "swap/path/transfer_queue.hpp"

#include <gtest/gtest.h>
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

namespace penstock::swap {
namespace {

using tiers::IoOperation;

class TransferQueueTest : public testing::Test {
 protected:
  void push(std::uint32_t slot, IoOperation operation = IoOperation::read) {
    queue_.push({.slot = slot, .operation = operation, .urgent = &urgent_[slot]});
  }
  void push_urgent(std::uint32_t slot, IoOperation operation = IoOperation::read) {
    urgent_[slot] = true;
    push(slot, operation);
  }
  void hasten(std::uint32_t slot) {
    urgent_[slot] = true;
    queue_.hasten(urgent_[slot]);
  }
  std::uint32_t take() {
    const std::uint32_t slot = queue_.front();
    queue_.pass(/*whole=*/true);
    return slot;
  }
  std::vector<std::uint32_t> take_each() {
    std::vector<std::uint32_t> slots;
    while (!queue_.empty()) slots.push_back(take());
    return slots;
  }

  std::array<std::atomic<bool>, 16> urgent_{};
  TransferQueue queue_;
};

using Slots = std::vector<std::uint32_t>;

TEST_F(TransferQueueTest, KeepsTheOrderOfTransfersThatAreAlike) {
  push(3), push(1), push(2);
  EXPECT_EQ(take_each(), Slots({3, 1, 2}));
  push_urgent(3), push_urgent(1), push_urgent(2);
  EXPECT_EQ(take_each(), Slots({3, 1, 2}));
}

TEST_F(TransferQueueTest, TakesUrgentOnesFirst) {
  push(1), push(2), push_urgent(3), push_urgent(4);
  EXPECT_EQ(take_each(), Slots({3, 4, 1, 2}));
}

TEST_F(TransferQueueTest, TakesOneThatHasBecomeUrgentBehindTheUrgentOnes) {
  push(1), push(2), push(3), push_urgent(4);
  hasten(3);
  EXPECT_EQ(take_each(), Slots({4, 3, 1, 2}));
}

// The flag is set before hasten() is called, which may be before push().
TEST_F(TransferQueueTest, KnowsThatOneHasBecomeUrgentBeforeItWasQueued) {
  push(1);
  hasten(2);
  push(2);
  EXPECT_EQ(take_each(), Slots({2, 1}));
}

TEST_F(TransferQueueTest, IgnoresThatOneBecomesUrgentThatIsNotQueued) {
  push(1), push_urgent(2);
  EXPECT_EQ(take(), 2u);
  hasten(2);
  hasten(3);
  EXPECT_EQ(take_each(), Slots({1}));
}

TEST_F(TransferQueueTest, TakesOneOfTheOthersAfterARunOfUrgentOnes) {
  push(0), push(1);
  for (std::uint32_t slot = 2; slot < 10; ++slot) push_urgent(slot);
  EXPECT_EQ(TransferQueue::urgent_run, 3u);
  EXPECT_EQ(take_each(), Slots({2, 3, 4, 0, 5, 6, 7, 1, 8, 9}));
}

TEST_F(TransferQueueTest, CountsNoUrgentOnesForWhichNothingHasWaited) {
  for (std::uint32_t slot = 2; slot < 6; ++slot) push_urgent(slot);
  EXPECT_EQ(take_each(), Slots({2, 3, 4, 5}));
  push(0), push_urgent(1);
  EXPECT_EQ(take_each(), Slots({1, 0}));
}

TEST_F(TransferQueueTest, TakesUrgentReadsBeforeUrgentWrites) {
  push_urgent(1, IoOperation::write), push_urgent(2), push_urgent(3);
  EXPECT_EQ(take_each(), Slots({2, 3, 1}));
}

TEST_F(TransferQueueTest, LetsNeitherUrgentWritesNorOthersWaitForEver) {
  push(0), push_urgent(1, IoOperation::write), push_urgent(2, IoOperation::write);
  for (std::uint32_t slot = 3; slot < 12; ++slot) push_urgent(slot);
  EXPECT_EQ(take_each(), Slots({3, 4, 5, 0, 1, 6, 7, 8, 2, 9, 10, 11}));
}

TEST_F(TransferQueueTest, GivesATurnToAPartOfOneThatIsNotWhole) {
  push(0);
  for (std::uint32_t slot = 1; slot < 6; ++slot) push_urgent(slot);
  Slots taken;
  for (int turn = 0; turn < 8; ++turn) {
    taken.push_back(queue_.front());
    queue_.pass(/*whole=*/taken.back() != 0);
  }
  EXPECT_EQ(taken, Slots({1, 2, 3, 0, 4, 5, 0, 0}));
  queue_.remove(0);
  EXPECT_TRUE(queue_.empty());
}

// Writes that come later may not keep it waiting.
TEST_F(TransferQueueTest, LetsAFlushWaitForNoLaterWrite) {
  push_urgent(1, IoOperation::write), push_urgent(2, IoOperation::write), push_urgent(3, IoOperation::write);
  push(0, IoOperation::flush);
  push_urgent(4, IoOperation::write), push_urgent(5, IoOperation::write);
  EXPECT_EQ(take_each(), Slots({1, 2, 3, 0, 4, 5}));
}

TEST_F(TransferQueueTest, LetsAFlushWaitForTheWritesBeforeIt) {
  for (std::uint32_t slot = 1; slot < 5; ++slot) push_urgent(slot, IoOperation::write);
  push(0, IoOperation::flush);
  EXPECT_EQ(take_each(), Slots({1, 2, 3, 4, 0}));
}

TEST_F(TransferQueueTest, GivesAllUp) {
  push(1), push_urgent(2), push(3);
  EXPECT_EQ(queue_.take_all(), Slots({2, 1, 3}));
  EXPECT_TRUE(queue_.empty());
}

}  // namespace
}  // namespace penstock::swap
