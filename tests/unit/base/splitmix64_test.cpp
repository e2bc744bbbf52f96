#include "base/splitmix64.hpp"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(Splitmix64, GivesTheNumbersOfItsPublishedImplementation) {
  std::uint64_t state = 0;

  EXPECT_EQ(splitmix64_next(state), 0xe220a8397b1dcdafu);
  EXPECT_EQ(splitmix64_next(state), 0x6e789e6aa1b965f4u);
  EXPECT_EQ(splitmix64_next(state), 0x06c45d188009454fu);
}

}  // namespace
}  // namespace penstock
