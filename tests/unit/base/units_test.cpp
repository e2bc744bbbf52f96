#include <penstock/base/units.hpp>

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(Units, PrintsBytesWithOneDecimalAndBinaryPrefixes) {
  EXPECT_EQ(to_string(ByteCount(0)), "0 B");
  EXPECT_EQ(to_exact_string(ByteCount(1023)), "1023 B");
  EXPECT_EQ(to_exact_string(ByteCount(1025)), "1.0 KiB (1025 B)");
  EXPECT_EQ(to_string(1023_B), "1023 B");
  EXPECT_EQ(to_string(1_KiB), "1.0 KiB");
  EXPECT_EQ(to_string(1_GiB - 1_B), "1.0 GiB");
  EXPECT_EQ(to_string(ByteCount(44345292595)), "41.3 GiB");
}

TEST(Units, PrintsElementsInGroupsOfThree) {
  EXPECT_EQ(to_string(ElementCount(0)), "0");
  EXPECT_EQ(to_string(ElementCount(999)), "999");
  EXPECT_EQ(to_string(ElementCount(1000)), "1 000");
  EXPECT_EQ(to_string(ElementCount(12345678)), "12 345 678");
}

TEST(Units, RoundsUpToAnAlignment) {
  EXPECT_EQ(round_up(0_B, Alignment(4096)), 0_B);
  EXPECT_EQ(round_up(1_B, Alignment(4096)), 4096_B);
  EXPECT_EQ(round_up(4096_B, Alignment(4096)), 4096_B);
  EXPECT_TRUE(is_aligned(FileOffset(8192), Alignment(4096)));
  EXPECT_FALSE(is_aligned(FileOffset(8191), Alignment(4096)));
}

}  // namespace
}  // namespace penstock
