#include "zero/engine/hops.hpp"

#include <gtest/gtest.h>

namespace penstock::zero {
namespace {

TEST(TurnOrder, GivesTurnsInTheOrderInWhichTheyWereDrawn) {
  TurnOrder order;
  const std::uint64_t first = order.draw(), second = order.draw();

  EXPECT_TRUE(order.is_turn_of(first));
  EXPECT_FALSE(order.is_turn_of(second));
  order.pass();
  EXPECT_FALSE(order.is_turn_of(first));
  EXPECT_TRUE(order.is_turn_of(second));
}

TEST(TurnOrder, TellsThoseWhoWaitOfTheFirstCause) {
  TurnOrder order;
  EXPECT_FALSE(order.broken());

  order.break_off(Error(ErrorCode::io, "first"));
  order.break_off(Error(ErrorCode::corrupted, "second"));

  EXPECT_EQ(order.broken()->code(), ErrorCode::io);
}

}  // namespace
}  // namespace penstock::zero
