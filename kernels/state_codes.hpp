#pragma once

// The compact encodings of masters and moments in a tile's state formats, as integer arithmetic on fp32 bits, written
// once as templates over Lanes. No standard headers, for the reason given in element.hpp.

#include "kernels/lane.hpp"

namespace penstock::kernels {

// ---- A master in two halves ----
// The parameter is the master rounded to the nearest bf16 number. The remainder is master minus parameter as a 16-bit
// two's complement number, which is the lower half of the master's bits. A tie, a master halfway between two bf16
// numbers, has the remainder 0x8000 whether it is rounded up or down, so the two halves suffice only if all ties are
// rounded the same way:
//   split_q8           rounds ties up in magnitude.
//   split, split_bf16  round ties to even, as fp32 does. The sign bit of the stored v, which is never negative, is 1
//                      for a tie that was rounded down. It counts only where the remainder is 0x8000.
// A NaN remains a NaN, with another payload.

template <class Lane>
struct SplitMaster {
  using U = typename Lane::U;
  using W = typename Lane::W;
  static constexpr U16 tie = 0x8000;
  W parameter, remainder;

  /// Rounds ties up in magnitude. Of a NaN only bits() is one; see storable().
  PENSTOCK_ELEMENT explicit SplitMaster(U bits)
      : parameter(Lane::upper_words(bits)), remainder(Lane::lower_words(bits)) {
    parameter = parameter + (remainder >> 15);
  }
  PENSTOCK_ELEMENT SplitMaster(W upper, W lower) : parameter(upper), remainder(lower) {}
  /// The bits of a master whose tie was rounded up.
  [[nodiscard]] PENSTOCK_ELEMENT U bits() const {
    return Lane::joined(parameter - (remainder >> 15), remainder);
  }

  [[nodiscard]] PENSTOCK_ELEMENT bool has_tie() const { return Lane::any_equal(remainder, tie); }
  /// 1 for each tie that was rounded up to an odd number, 0 for all else.
  [[nodiscard]] PENSTOCK_ELEMENT W odd_ties() const { return ties() & parameter; }
  /// Rounds `down`, which is odd_ties() of a master that was rounded up, to even instead.
  PENSTOCK_ELEMENT void round_down(W down) { parameter = parameter - down; }
  /// The inverse, before bits(). Only the lowest bits of `down` count, and only those of ties.
  PENSTOCK_ELEMENT void round_up(W down) { parameter = parameter + (ties() & down); }

 private:
  /// 1 for each tie, 0 for all else.
  [[nodiscard]] PENSTOCK_ELEMENT W ties() const { return Lane::excess(W(U16{1}), remainder - W(tie)); }
};

inline constexpr U32 sign_bit = 0x80000000u;

/// The bits of a master as they can be split: a NaN becomes a quiet one without a lower half, which rounding cannot carry
/// into the sign (CUDA's NaN is 0x7fffffff) and whose upper half is no infinity.
PENSTOCK_ELEMENT U32 storable(U32 bits) {
  return (bits & ~sign_bit) > 0x7f800000u ? (bits | 0x00400000u) & 0xffff0000u : bits;
}

// ---- Stochastic rounding ----
// Random bits are added to the bits that are cut off, so that the expected value of the result is the exact value, to
// within 2^-16 (bf16) or 2^-20 (eight bits) of the distance between neighbouring results.

/// The random number of element i of a block is the block's seed plus i × random_step (2^32 / golden ratio): a Weyl
/// sequence. With a uniform seed the upper bits of each element's number are uniform; numbers of neighbouring elements
/// are correlated.
inline constexpr U32 random_step = 0x9e3779b1u;

/// The random numbers of element i of a block and of the elements after it that are in the same lane.
template <class Lane>
PENSTOCK_ELEMENT typename Lane::U random_of(U32 seed, unsigned long i) {
  using U = typename Lane::U;
  return U(seed + random_step * static_cast<U32>(i)) + Lane::template multiples<random_step>();
}

/// `bits` plus a random number below its upper `kept` bits; the caller cuts off the lower bits. Both moments of an
/// element use the same number, which makes their ratio vary less.
template <int kept, class U>
PENSTOCK_ELEMENT U dithered(U bits, U random) {
  return bits + (random >> kept);
}

// ---- Eight-bit codes ----
// Small floating-point numbers with 3 mantissa bits, scaled by an upper bound of their run of q8_run elements. `base`
// is the fp32 exponent field that corresponds to exponent code 0. Scaling by a power of two is exact, except for the
// last bits of results that become subnormal.
//   m  sign and 4 exponent bits, with subnormals and zero as in IEEE 754. Base 4 to 240.
//   v  5 exponent bits, none of them special. There is no zero: where m is not zero, a v of zero would make epsilon the
//      only divisor. Values below the smallest code, 2^-31 of the bound's power of two, are encoded as that code.
//      Base 4 to 224.
// Codes are packed from and unpacked to the upper 16 bits of the fp32 number, of which 12 are kept.

inline constexpr unsigned q8_run = 256;
inline constexpr U32 q8_m_exponent_max = 15, q8_v_exponent_max = 31;

/// The base for magnitudes up to that of the fp32 bits `bits_max`, in its stored form: base - 4, and 0 for a run of
/// zeros. Leaves room for rounding the largest magnitude up into the next binade.
PENSTOCK_ELEMENT U32 q8_stored_base(U32 bits_max, U32 exponent_max) {
  const U32 top = (bits_max + 0xfffffu) >> 23;
  return top > exponent_max + 4 ? top - exponent_max - 4 : 0;
}

/// 2^n, for n of -126 to 127.
PENSTOCK_ELEMENT float power_of_two(int n) {
  return kernels::float_of(static_cast<U32>(n + 127) << 23);
}

/// Codes of m. A code is decoded to the fp32 number with the code's exponent field, times a power of two; fp32
/// subnormals represent the code's subnormals.
template <class Lane>
struct Q8M {
  using F = typename Lane::F;
  using U = typename Lane::U;
  using W = typename Lane::W;
  using Operand = typename Lane::Operand;
  /// 2^base and 2^-base. A base above 120, for m of 256 and more, does not fit one fp32 number: then these are 2^120
  /// and 2^-120, and `rest` is the remaining exponent.
  Operand up, down;
  int rest;

  PENSTOCK_ELEMENT explicit Q8M(U32 stored_base) {
    const int base = static_cast<int>(stored_base) + 4, most = base < 120 ? base : 120;
    up = Operand(power_of_two(most));
    down = Operand(power_of_two(-most));
    rest = base - most;
  }
  /// The value of a sign-extended code times `factor`. Scale and factor are one multiplication; the scale is a power of
  /// two, so the result is rounded as if they were two.
  PENSTOCK_ELEMENT F decoded(W code, Operand factor) const {
    F m = Lane::value_of(Lane::upper((code << 4) & W(0x87f0u)));
    if (rest != 0) m = m * Operand(power_of_two(rest));
    return m * (up * factor);
  }
  /// The code in the lower eight bits.
  PENSTOCK_ELEMENT W encoded(F m, U random) const {
    m = m * down;
    if (rest != 0) m = m * Operand(power_of_two(-rest));
    const W words = Lane::upper_words(dithered<12>(Lane::bits_of(m), random));
    return (words >> 4) | ((words >> 8) & W(0x80u));
  }
};

template <class Lane>
struct Q8V {
  using F = typename Lane::F;
  using U = typename Lane::U;
  using W = typename Lane::W;
  W base;

  PENSTOCK_ELEMENT explicit Q8V(U32 stored_base) : base(static_cast<U16>((stored_base + 4) << 3)) {}

  PENSTOCK_ELEMENT F decoded(W code) const { return Lane::value_of(Lane::upper((code + base) << 4)); }
  /// The stochastically rounded v, which must not be negative; encoded() keeps its upper 12 bits.
  PENSTOCK_ELEMENT static W rounded(F v, U random) {
    return Lane::upper_words(dithered<12>(Lane::bits_of(v), random));
  }
  PENSTOCK_ELEMENT W encoded(W rounded_v) const { return Lane::excess(rounded_v >> 4, base); }
};

}  // namespace penstock::kernels
