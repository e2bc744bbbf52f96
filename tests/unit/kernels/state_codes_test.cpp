#include "kernels/state_codes.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace penstock::kernels {
namespace {

constexpr U32 randoms[] = {0,       1,          0x8000,     0xffff,     0x80000,
                           0xfffff, 0x7fffffff, 0x80000000, 0xffff0000, 0xffffffff};

using M = Q8M<ScalarLane>;
using V = Q8V<ScalarLane>;

constexpr U32 m_codes = 512, v_codes = 2048, m_bases = 233, v_bases = 209;

/// A word with code `code` of m, the sign as its uppermost bit, and with all bits of v.
float decoded(const M& scale, U32 code, float factor = 1.0f) {
  return scale.decoded(code << 7 | 0x7fu, factor);
}
U32 encoded(const M& scale, float m, U32 random) {
  return scale.encoded(m, random) >> 7;
}
U32 encoded(const V& scale, float v, U32 random) {
  return scale.encoded(V::rounded(v, random), random);
}

// Processors differ in the NaNs that they make, so the scale of a run that contains one must not depend on its bits.
TEST(Q8Code, HasOneBaseForInfinityAndAllNaNs) {
  for (const U32 nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu}) {
    EXPECT_EQ(M::Code::stored_base(nan), M::Code::stored_base(0x7f800000u)) << std::hex << nan;
    EXPECT_EQ(V::Code::stored_base(nan), V::Code::stored_base(0x7f800000u)) << std::hex << nan;
  }
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

// A caller sets weights to zero between steps, and the remainders are those of the masters before.
TEST(SplitMaster, OfAParameterThatWasSetToZeroIsNearZero) {
  for (U32 remainder = 0; remainder < 0x10000; ++remainder) {
    for (const U32 zero : {0u, 0x8000u}) {
      Master halves{zero, remainder};
      ASSERT_EQ(halves.bits(), zero << 16 | remainder);
      halves.round_up(1);
      ASSERT_EQ(halves.bits(), zero << 16 | remainder);
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
TEST(StateCodes, EveryCodeOfEveryScaleSurvivesDecodingAndEncoding) {
  for (U32 stored = 0; stored < m_bases; ++stored) {
    const M scale(stored);
    for (U32 code = 0; code < m_codes; ++code) {
      const float m = decoded(scale, code);
      if (!std::isfinite(m)) continue;  // beyond the largest float
      EXPECT_EQ(std::signbit(m), code >= m_codes / 2);
      for (const U32 random : randoms) ASSERT_EQ(encoded(scale, m, random), code) << stored << " " << code;
    }
  }
  for (U32 stored = 0; stored < v_bases; ++stored) {
    const V scale(stored);
    for (U32 code = 0; code < v_codes; ++code) {
      const float v = scale.decoded(code);
      if (!std::isfinite(v)) continue;
      EXPECT_GT(v, 0.0f);
      for (const U32 random : randoms) ASSERT_EQ(encoded(scale, v, random), code) << stored << " " << code;
    }
  }
}

TEST(StateCodes, AreInTheOrderOfTheirValuesWithTheDocumentedSpacing) {
  const M m(100);
  for (U32 code = 0; code + 1 < m_codes / 2; ++code) {
    const float low = decoded(m, code), high = decoded(m, code + 1);
    const float lowest_normal = power_of_two(100 + 4 + 1 - 127);
    const int mantissa_bits = code < 128 ? 3 : 5;
    ASSERT_EQ(high - low, std::ldexp(1.0f, std::ilogb(std::max(low, lowest_normal)) - mantissa_bits)) << code;
  }
  EXPECT_EQ(decoded(m, 0), 0.0f);
  EXPECT_EQ(decoded(m, 255) / decoded(m, 1), std::ldexp(63.0f, 18 - 5 + 3));  // 20 octaves

  const V v(100);
  for (U32 code = 0; code + 1 < v_codes; ++code) {
    const float low = v.decoded(code), high = v.decoded(code + 1);
    ASSERT_EQ(high - low, std::ldexp(1.0f, std::ilogb(low) - (code < 512 ? 4 : 7))) << code;
  }
  EXPECT_EQ(v.decoded(0), power_of_two(100 + 4 - 127));
  EXPECT_EQ(v.decoded(v_codes - 1) / v.decoded(0), std::ldexp(255.0f, 43 - 7));  // 44 octaves
}

TEST(StateCodes, AWordAndANibbleHoldTheCodeOfV) {
  for (U32 code = 0; code < v_codes; ++code) {
    const U32 word = 0xff80u | V::word_part(code), nibble = V::nibble_part(code);
    ASSERT_LT(V::word_part(code), 0x80u);
    ASSERT_LT(nibble, 16u);
    ASSERT_EQ(V::joined(word, nibble), code);
  }
}

// Of all random numbers, the part that rounds up is the part of the way to the next code. It is also right at the edge
// between the coarse codes and the fine ones.
TEST(StateCodes, RoundUpAsOftenAsTheExactValueAsks) {
  constexpr U32 some = 1u << 16;
  const M m_scale(100);
  const V v_scale(100);
  const auto expect = [](double value, double low, double high, const auto& code_of, U32 code) {
    U32 ups = 0;
    for (U32 i = 0; i < some; ++i) {
      const U32 got = code_of(i * random_step);
      ASSERT_TRUE(got == code || got == code + 1) << value << " " << code << " " << got;
      ups += got - code;
    }
    ASSERT_NEAR(static_cast<double>(ups) / some, (value - low) / (high - low), 1e-3) << code;
  };
  for (const double way : {0.0, 0.01, 0.3, 0.5, 0.99}) {
    for (const U32 code : {0u, 1u, 6u, 7u, 8u, 60u, 126u, 127u, 128u, 129u, 200u, 254u}) {
      const float low = decoded(m_scale, code), high = decoded(m_scale, code + 1);
      const auto value = static_cast<float>(low + way * (high - low));
      expect(
          value, low, high, [&](U32 random) { return encoded(m_scale, value, random); }, code);
      expect(
          value, low, high, [&](U32 random) { return encoded(m_scale, -value, random) & 0xffu; }, code);
    }
    for (const U32 code : {0u, 1u, 15u, 16u, 300u, 510u, 511u, 512u, 513u, 1500u, 2046u}) {
      const float low = v_scale.decoded(code), high = v_scale.decoded(code + 1);
      const auto value = static_cast<float>(low + way * (high - low));
      expect(
          value, low, high, [&](U32 random) { return encoded(v_scale, value, random); }, code);
    }
  }
}

TEST(StateCodes, EncodeAValueOfVBelowTheSmallestCodeAsThatCode) {
  const V scale(100);
  for (const U32 random : randoms) {
    for (const float below : {0.0f, 1e-30f, 0.99f * scale.decoded(0)}) {
      EXPECT_EQ(encoded(scale, below, random), 0u) << below;
    }
  }
}

// The scale computed for a largest value can represent it, even when it is rounded up.
TEST(StateCodes, AScaleHoldsTheLargestThatItIsMadeFor) {
  for (U32 bits = 0; bits < 0x7f000000u; bits += 77'777) {
    const float largest = float_of(bits);
    const M m(M::Code::stored_base(bits));
    const V v(V::Code::stored_base(bits));
    // Fine codes, unless the scale is the smallest one.
    const float m_spacing = largest < 0x1p-107f ? std::max(largest / 8, 0x1p-125f) : largest / 32;
    const float v_spacing = largest < 0x1p-91f ? std::max(largest / 16, 0x1p-123f) : largest / 128;
    for (const U32 random : randoms) {
      ASSERT_LT(encoded(m, largest, random), m_codes / 2) << largest;
      ASSERT_LT(encoded(v, largest, random), v_codes) << largest;
      ASSERT_LE(std::abs(decoded(m, encoded(m, largest, random)) - largest), m_spacing) << largest;
      ASSERT_LE(std::abs(v.decoded(encoded(v, largest, random)) - largest), v_spacing) << largest;
    }
  }
}

// Decoding and decaying in one multiplication gives the same bits as two multiplications.
TEST(StateCodes, AFactorOfADecodedCodeIsRoundedLikeItsProduct) {
  for (U32 stored = 0; stored < m_bases; stored += 4) {
    const M scale(stored);
    for (U32 code = 0; code < m_codes; ++code) {
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
