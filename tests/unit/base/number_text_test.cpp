#include "base/number_text.hpp"

#include <gtest/gtest.h>
#include <cmath>

namespace penstock {
namespace {

TEST(NumberText, IsShortAndKeepsSmallAndLargeNumbers) {
  EXPECT_EQ(number_text(0.95f), "0.95");
  EXPECT_EQ(number_text(-1e-9), "-1e-09");
  EXPECT_EQ(number_text(3e38), "3e+38");
  EXPECT_EQ(number_text(7), "7");
  EXPECT_EQ(number_text(INFINITY), "inf");
}

}  // namespace
}  // namespace penstock
