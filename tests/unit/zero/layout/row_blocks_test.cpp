#include <penstock/zero/layout/row_blocks.hpp>

#include <gtest/gtest.h>

#include <limits>

namespace penstock::zero {
namespace {

using Blocks = std::vector<RowBlock>;

RowBlockOptions matrix(std::uint64_t rows, std::uint64_t limit, std::uint64_t multiple = 1) {
  return {.name = "up.weight",
          .rows = rows,
          .row_elements = 10,
          .elements_max = ElementCount(limit),
          .multiple = multiple};
}

TEST(CutRows, LeavesAMatrixWithinTheLimitWhole) {
  EXPECT_EQ(cut_rows(matrix(7, 0)).value(), (Blocks{{0, 7}}));
  EXPECT_EQ(cut_rows(matrix(7, 70)).value(), (Blocks{{0, 7}}));
  EXPECT_EQ(cut_rows(matrix(7, 70, 64)).value(), (Blocks{{0, 7}}));  // not cut: begins at no other multiple
}

TEST(CutRows, MakesTheFewestBlocksOfNearlyEqualSize) {
  EXPECT_EQ(cut_rows(matrix(7, 69)).value(), (Blocks{{0, 4}, {4, 3}}));
  EXPECT_EQ(cut_rows(matrix(8, 30)).value(), (Blocks{{0, 3}, {3, 3}, {6, 2}}));
  EXPECT_EQ(cut_rows(matrix(3, 10)).value(), (Blocks{{0, 1}, {1, 1}, {2, 1}}));
}

TEST(CutRows, BeginsBlocksAtMultiplesWithinTheLimit) {
  for (std::uint64_t rows = 1; rows < 200; ++rows) {
    for (std::uint64_t limit = 80; limit < 400; limit += 7) {
      const Blocks blocks = cut_rows(matrix(rows, limit, 8)).value();
      std::uint64_t next = 0;
      for (const RowBlock& block : blocks) {
        EXPECT_EQ(block.first, next);
        EXPECT_EQ(block.first % 8, 0u);
        EXPECT_GT(block.count, 0u);
        EXPECT_LE(block.count * 10, limit);
        next += block.count;
      }
      EXPECT_EQ(next, rows);
    }
  }
}

TEST(CutRows, RefusesALimitBelowTheRowsOfOneMultiple) {
  const auto refused = cut_rows(matrix(100, 79, 8));

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  for (const char* part : {"up.weight", "8 rows", "at least 80", "79", "penstock.unit_elements_max"}) {
    EXPECT_NE(refused.error().message().find(part), std::string::npos) << refused.error().message();
  }
}

TEST(CutRows, RefusesZerosAndMoreElementsThanFitInto64Bits) {
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  RowBlockOptions no_elements = matrix(1, 0);
  no_elements.row_elements = 0;
  for (const RowBlockOptions& wrong :
       {matrix(0, 10), no_elements, matrix(1, 10, 0), matrix(most, 10), matrix(1, 10, most)}) {
    const auto refused = cut_rows(wrong);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message().find("up.weight"), std::string::npos);
  }
}

}  // namespace
}  // namespace penstock::zero
