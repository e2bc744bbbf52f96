#include "base/duration_text.hpp"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(DurationText, IsInTheLargestUnitThatGivesAWholeNumber) {
  EXPECT_EQ(duration_text(std::chrono::minutes(30)), "1800 s");
  EXPECT_EQ(duration_text(std::chrono::milliseconds(1500)), "1500 ms");
  EXPECT_EQ(duration_text(std::chrono::nanoseconds(20)), "20 ns");
  EXPECT_EQ(duration_text({}), "0 s");
}

}  // namespace
}  // namespace penstock
