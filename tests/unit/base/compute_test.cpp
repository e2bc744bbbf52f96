#include <penstock/base/compute.hpp>

#include <gtest/gtest.h>
#include <vector>

namespace penstock {
namespace {

TEST(SumTree, AddsHalvesOfTheNextPowerOfTwo) {
  // 1e16 + 1 is not representable: the grouping shows in the result.
  EXPECT_EQ(sum_tree(std::vector<double>{}), 0.0);
  EXPECT_EQ(sum_tree(std::vector<double>{3.0}), 3.0);
  EXPECT_EQ(sum_tree(std::vector<double>{1.0, 1.0, 1e16}), 1e16 + 2.0);
  EXPECT_EQ(sum_tree(std::vector<double>{1e16, 1.0, 1.0}), 1e16 + 1.0);
}

}  // namespace
}  // namespace penstock
