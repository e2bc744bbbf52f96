#include "zero/comm/hop_order.hpp"

#include <gtest/gtest.h>

namespace penstock::zero {
namespace {

TEST(HopOrder, MakesHopsTheHeadInTheOrderInWhichTheyWereAppended) {
  HopOrder order;
  const std::uint64_t first = order.append(), second = order.append();

  EXPECT_TRUE(order.is_head(first));
  EXPECT_FALSE(order.is_head(second));
  order.pop();
  EXPECT_FALSE(order.is_head(first));
  EXPECT_TRUE(order.is_head(second));
}

TEST(HopOrder, KeepsTheFirstCause) {
  HopOrder order;
  EXPECT_FALSE(order.failure());

  order.fail(Error(ErrorCode::io, "first"));
  order.fail(Error(ErrorCode::corrupted, "second"));

  EXPECT_EQ(order.failure()->code(), ErrorCode::io);
}

}  // namespace
}  // namespace penstock::zero
