#include "kernels/state_codes.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace penstock::kernels {
namespace {

constexpr U32 randoms[] = {0, 1, 0xfffff, 0x80000, 0x7fffffff, 0x80000000, 0xffffffff};

using M = Q8M<ScalarLane>;
using V = Q8V<ScalarLane>;

float decoded(const M& scale, U32 code, float factor = 1.0f) {
  return scale.decoded((code ^ 0x80u) - 0x80u, factor);
}
U32 encoded(const M& scale, float m, U32 random) {
  return scale.encoded(m, random) & 0xffu;
}
U32 encoded(const V& scale, float v, U32 random) {
  return scale.encoded(V::rounded(v, random));
}

using Master = SplitMaster<ScalarLane>;

TEST(SplitMaster, RoundsLikeBf16WithOneBitForTies) {
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32;
       bits += 0x3fff) {  // one remainder in four is a tie
    const auto master = static_cast<U32>(bits + 1) & ~0x3fffu;
    if ((master & 0x7fffffffu) > 0x7f800000u) continue;
    Master halves(master);
    ASSERT_EQ(halves.bits(), master);
    const U32 down = halves.odd_ties();
    halves.round_down(down);
    ASSERT_EQ(halves.parameter & 0xffffu, narrow<Bf16>(float_of(master)).bits) << std::hex << master;
    ASSERT_EQ(down, (master & 0x1ffffu) == 0x8000u) << std::hex << master;
    for (const U32 above : {0u, 0xfffffffeu}) {  // other bits do not count
      Master joined = halves;
      joined.round_up(down | above);
      ASSERT_EQ(joined.bits(), master) << std::hex << master;
    }
  }
}

TEST(SplitMaster, KeepsANaNThatIsStorable) {
  for (std::uint64_t bits = 0x7f800001u; bits < 0x80000000u; bits += 0x7f) {
    for (const U32 sign : {0u, sign_bit}) {
      Master halves(storable(static_cast<U32>(bits) | sign));
      ASSERT_EQ(halves.odd_ties(), 0u) << std::hex << bits;
      ASSERT_TRUE(std::isnan(widen(Bf16{static_cast<U16>(halves.parameter)}))) << std::hex << bits;
      ASSERT_TRUE(std::isnan(float_of(halves.bits()))) << std::hex << bits;
      ASSERT_EQ(halves.bits() & sign_bit, sign);
    }
  }
}

TEST(SplitMaster, ChangesNaNsOnlyToBeStorable) {
  for (const U32 same : {0u, 0x80000000u, 0x7f7fffffu, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffff0000u}) {
    EXPECT_EQ(storable(same), same);
  }
  EXPECT_EQ(storable(0x7f800001u), 0x7fc00000u);
  EXPECT_EQ(storable(0xffbfffffu), 0xffff0000u);
  EXPECT_EQ(storable(0x7fffffffu), 0x7fff0000u);  // CUDA's NaN
}

// The value of a code is encoded as the same code, for every random number.
TEST(StateCodes, EveryEightBitCodeOfEveryScaleSurvivesDecodingAndEncoding) {
  for (U32 stored = 0; stored <= 236; ++stored) {
    const M scale(stored);
    for (U32 code = 0; code < 256; ++code) {
      const float m = decoded(scale, code);
      if (!std::isfinite(m)) continue;  // beyond the largest float
      EXPECT_EQ(std::signbit(m), code >= 128);
      for (const U32 random : randoms) ASSERT_EQ(encoded(scale, m, random), code) << stored << " " << code;
    }
  }
  for (U32 stored = 0; stored <= 220; ++stored) {
    const V scale(stored);
    for (U32 code = 0; code < 256; ++code) {
      const float v = scale.decoded(code);
      if (!std::isfinite(v)) continue;
      EXPECT_GT(v, 0.0f);
      for (const U32 random : randoms) ASSERT_EQ(encoded(scale, v, random), code) << stored << " " << code;
    }
  }
}

// The scale computed for a largest value can represent it, even when it is rounded up.
TEST(StateCodes, AScaleHoldsTheLargestThatItIsMadeFor) {
  for (U32 bits = 0; bits < 0x7f000000u; bits += 77'777) {
    const float largest = float_of(bits);
    const M m(q8_stored_base(bits, q8_m_exponent_max));
    const V v(q8_stored_base(bits, q8_v_exponent_max));
    for (const U32 random : randoms) {
      ASSERT_LT(encoded(m, largest, random), 128u) << largest;
      ASSERT_LT(encoded(v, largest, random), 256u) << largest;
      ASSERT_LE(std::abs(decoded(m, encoded(m, largest, random)) - largest),
                std::max(largest / 8, 0x1p-125f));
      ASSERT_LE(std::abs(v.decoded(encoded(v, largest, random)) - largest), std::max(largest / 8, 0x1p-122f));
    }
  }
}

// Decoding and decaying in one multiplication gives the same bits as two multiplications.
TEST(StateCodes, AFactorOfADecodedCodeIsRoundedLikeItsProduct) {
  for (U32 stored = 0; stored <= 236; stored += 4) {
    const M scale(stored);
    for (U32 code = 0; code < 256; ++code) {
      const float m = decoded(scale, code);
      if (!std::isfinite(m)) continue;
      for (const float factor : {0.9f, 0.95f, 0.99999994f, 0x1.234568p-100f, 0x1.234568p-126f, 0.0f}) {
        ASSERT_EQ(bits_of(decoded(scale, code, factor)), bits_of(m * factor)) << stored << " " << code;
      }
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
