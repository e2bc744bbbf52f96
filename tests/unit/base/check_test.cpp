#include <penstock/base/check.hpp>

#include <gtest/gtest.h>
#include <csignal>

namespace penstock {
namespace {

TEST(CheckDeathTest, PrintsPlaceAndExpressionAndAborts) {
  EXPECT_EXIT(detail::check_failed("a == b", "file.cpp", 7), testing::KilledBySignal(SIGABRT),
              "file.cpp:7: check failed: a == b");
}

TEST(CheckDeathTest, AbortsInReleaseBuildsTooIfTheConditionIsFalse) {
  int evaluations = 0;
  PENSTOCK_CHECK(++evaluations == 1);
  EXPECT_EQ(evaluations, 1);
  EXPECT_DEATH(PENSTOCK_CHECK(evaluations == 2), "check_test.cpp:[0-9]+: check failed: evaluations == 2");
}

}  // namespace
}  // namespace penstock
