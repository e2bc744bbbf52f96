#include "kernels/state_codes.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>

namespace penstock::kernels {
namespace {

constexpr U32 randoms[] = {0, 1, 0xfffff, 0x80000, 0x7fffffff, 0x80000000, 0xffffffff};

U32 sign_extended(U32 code) {
  return (code ^ 0x80u) - 0x80u;
}

// What a code stands for is rounded to nothing else, whatever the random number.
TEST(StateCodes, EveryEightBitCodeOfEveryScaleComesBack) {
  for (U32 stored = 0; stored <= 236; ++stored) {
    const Q8M<ScalarLane> scale(stored);
    for (U32 code = 0; code < 256; ++code) {
      const float m = scale.decoded(sign_extended(code));
      if (!std::isfinite(m)) continue;  // beyond the largest float
      EXPECT_EQ(std::signbit(m), code >= 128);
      for (const U32 random : randoms) ASSERT_EQ(scale.encoded(m, random), code) << stored << " " << code;
    }
  }
  for (U32 stored = 0; stored <= 220; ++stored) {
    const Q8V<ScalarLane> scale(stored);
    for (U32 code = 0; code < 256; ++code) {
      const float v = scale.decoded(code);
      if (!std::isfinite(v)) continue;
      EXPECT_GT(v, 0.0f);
      for (const U32 random : randoms) ASSERT_EQ(scale.encoded(v, random), code) << stored << " " << code;
    }
  }
}

// The scale that is made for a largest value holds it, rounded up too.
TEST(StateCodes, AScaleHoldsTheLargestThatItIsMadeFor) {
  for (U32 bits = 0; bits < 0x7f000000u; bits += 77'777) {
    const float largest = float_of(bits);
    const Q8M<ScalarLane> m(q8_stored_base(bits, q8_m_exponent_max));
    const Q8V<ScalarLane> v(q8_stored_base(bits, q8_v_exponent_max));
    for (const U32 random : randoms) {
      ASSERT_LT(m.encoded(largest, random), 128u) << largest;
      ASSERT_LT(v.encoded(largest, random), 256u) << largest;
      ASSERT_LE(std::abs(m.decoded(sign_extended(m.encoded(largest, random))) - largest),
                std::max(largest / 8, 0x1p-125f));
      ASSERT_LE(std::abs(v.decoded(v.encoded(largest, random)) - largest), std::max(largest / 8, 0x1p-122f));
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
