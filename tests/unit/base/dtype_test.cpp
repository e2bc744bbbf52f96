#include <penstock/base/dtype.hpp>

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(DType, TurnsElementsIntoBytesAndBack) {
  EXPECT_EQ(bytes_of(ElementCount(7), DType::fp32).value(), 28_B);
  EXPECT_EQ(bytes_of(ElementCount(7), DType::bf16).value(), 14_B);
  EXPECT_EQ(elements_of(14_B, DType::fp16).value(), ElementCount(7));
}

TEST(DType, RefusesAProductThatOverflows) {
  auto bytes = bytes_of(ElementCount(~0ull / 2), DType::fp32);

  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().code(), ErrorCode::invalid_argument);
}

TEST(DType, RefusesAPartialElement) {
  auto elements = elements_of(15_B, DType::bf16);

  ASSERT_FALSE(elements);
  EXPECT_EQ(elements.error().message(),
            "not a whole number of elements, wanted a multiple of 2 B, got 15 B [elements_of]");
}

}  // namespace
}  // namespace penstock
