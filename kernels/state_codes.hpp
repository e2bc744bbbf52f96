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

  /// Rounds ties up in magnitude. Of a NaN only bits_before_rounding() is one; see storable().
  PENSTOCK_ELEMENT explicit SplitMaster(U bits)
      : parameter(Lane::upper_words(bits)), remainder(Lane::lower_words(bits)) {
    parameter = parameter + (remainder >> 15);
  }
  PENSTOCK_ELEMENT SplitMaster(W upper, W lower) : parameter(upper), remainder(lower) {}
  /// The bits of a master whose tie was rounded up. No master is rounded to a zero with a negative remainder: then the
  /// caller has set the parameter to zero, and the master is the subnormal number whose lower half is the remainder.
  [[nodiscard]] PENSTOCK_ELEMENT U bits() const {
    return Lane::joined(parameter - Lane::smaller(remainder >> 15, parameter & W(U16{0x7fff})), remainder);
  }
  /// What was given to the first constructor, also a NaN whose rounding has carried into the sign.
  [[nodiscard]] PENSTOCK_ELEMENT U bits_before_rounding() const {
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

/// The bits of a master as they can be split: a NaN becomes a quiet one without a lower half, which rounding cannot
/// carry into the sign (CUDA's NaN is 0x7fffffff) and whose upper half is no infinity.
PENSTOCK_ELEMENT U32 storable(U32 bits) {
  return (bits & ~sign_bit) > 0x7f800000u ? (bits | 0x00400000u) & 0xffff0000u : bits;
}

// ---- Stochastic rounding ----
// Random bits are added to the bits that are cut off, so that the expected value of the result is the exact value, to
// within 2^-16 of the distance between neighbouring results.

/// The random number of element i of a block is the block's seed plus i × random_step (2^32 / golden ratio): a Weyl
/// sequence. With a uniform seed the bits of each element's number are uniform and independent; numbers of neighbouring
/// elements are correlated.
inline constexpr U32 random_step = 0x9e3779b1u;

/// The random numbers of element i of a block and of the elements after it that are in the same lane.
template <class Lane>
PENSTOCK_ELEMENT typename Lane::U random_of(U32 seed, unsigned long i) {
  using U = typename Lane::U;
  return U(seed + random_step * static_cast<U32>(i)) + Lane::template multiples<random_step>();
}

/// `bits` plus the upper half of a random number; the caller cuts off the lower half. split_bf16 uses the same number
/// for both moments of an element, which makes their ratio vary less.
template <class U>
PENSTOCK_ELEMENT U dithered(U bits, U random) {
  return bits + (random >> 16);
}

// ---- Masters in 16 bits ----
// Of moments and moments_bf16, whose parameter is the master. It is rounded stochastically with the lower half of the
// element's random number; its moments use the upper half.

template <class Parameter>
struct NarrowMaster;

template <>
struct NarrowMaster<Bf16> {
  static constexpr U16 infinity = 0x7f80;

  /// The words of a result of arithmetic, whose NaNs are quiet. These are cut to at most 0x7fff0000 without the sign,
  /// so that rounding cannot carry into it.
  template <class Lane>
  PENSTOCK_ELEMENT static typename Lane::W rounded(typename Lane::F master, typename Lane::U random) {
    using Mask = typename Lane::Mask;
    const auto bits = Lane::bits_of(master);
    const auto magnitude = Lane::smaller(bits & Mask(0x7fffffffu), Mask(0x7fff0000u));
    return Lane::upper_words((magnitude + (random & Mask(0xffffu))) | (bits & Mask(sign_bit)));
  }
};

template <>
struct NarrowMaster<Fp16> {
  static constexpr U16 infinity = 0x7c00;

  /// Adds 13 random bits to a fixed-point number of the distance between fp16 numbers with 13 bits below it: the bits
  /// of a normal number, and of subnormals |x| + 2^-14, which has that form. Each of the two is the larger one where it
  /// counts. The sum's own rounding shifts the expected value of subnormals by at most 2^-14 of the distance.
  template <class Lane>
  PENSTOCK_ELEMENT static typename Lane::W rounded(typename Lane::F master, typename Lane::U random) {
    using Mask = typename Lane::Mask;
    using Operand = typename Lane::Operand;
    constexpr U32 exponent_one = 1u << 23, rebias = (127 - 15) << 23;
    const auto bits = Lane::bits_of(master), magnitude = bits & Mask(0x7fffffffu);
    const auto subnormal =
        Lane::bits_of(Lane::value_of(magnitude) + Operand(0x1p-14f)) + Mask(0u - exponent_one);
    const auto fixed = Lane::larger(magnitude, subnormal) + Mask(0u - rebias);
    const auto rounded = Lane::smaller((fixed + (random & Mask(0x1fffu))) >> 13, Mask(infinity));
    const auto quiet = ((magnitude + Mask(0x7fffffu)) >> 22) & Mask(0x200u);  // of a NaN
    return Lane::lower_words((rounded | quiet) | ((bits & Mask(sign_bit)) >> 16));
  }
};

/// What Largest::add_positive_upper_words() takes of stored masters: at least the upper half of not_finite where one is
/// not finite.
template <class Parameter, class W>
PENSTOCK_ELEMENT W finiteness_of(W master) {
  return (master & W(U16{0x7fff})) + W(U16{NarrowMaster<Bf16>::infinity - NarrowMaster<Parameter>::infinity});
}

// ---- Moments of split_q8 ----
// The two moments of an element are 20 bits: a word and a nibble.
//   word    bit 15: sign of m; bits 14 to 7: code of the magnitude of m; bits 6 to 0: the upper bits of the code of v
//   nibble  the lower 4 bits of the code of v
// Codes are relative to an upper bound of their run of q8_run elements. `base` is the fp32 exponent field of code 0.
//   m  16 octaves with 3 mantissa bits, the lowest of them as subnormals with zero, and 4 with 5. Base 4 to 236.
//   v  32 octaves with 4 mantissa bits and 12 with 7. There is no zero: where m is not zero, a v of zero would make
//      epsilon the only divisor. Values below the smallest code, 2^-43 of the bound's power of two, are encoded as that
//      code. Base 4 to 212.

inline constexpr unsigned q8_run = 256;

/// A code for words with 7 mantissa bits below the exponent's: the upper halves of fp32 numbers. Words below `edge`
/// keep `coarse_bits` of their mantissa bits, those from `edge` on `fine_bits`. Codes are in the order of the words.
template <int coarse_octaves, int coarse_bits, int fine_octaves, int fine_bits>
struct Q8Code {
  static constexpr U16 edge = coarse_octaves << 7;
  static constexpr U16 first_fine = coarse_octaves << coarse_bits;
  static constexpr U32 last_exponent = coarse_octaves + fine_octaves - 1;

  /// Rounds stochastically. A word that is rounded up to `edge` gets the first fine code.
  template <class Lane, class W = typename Lane::W>
  PENSTOCK_ELEMENT static W encoded(W word, W random) {
    const W coarse = Lane::smaller(rounded<coarse_bits>(word, random), W(first_fine));
    return coarse + Lane::excess(rounded<fine_bits>(word, random), W(U16{edge >> (7 - fine_bits)}));
  }
  template <class Lane, class W = typename Lane::W>
  PENSTOCK_ELEMENT static W decoded(W code) {
    const W fine = Lane::excess(code, W(first_fine));
    return ((code - fine) << (7 - coarse_bits)) + (fine << (7 - fine_bits));
  }
  /// The base for magnitudes up to that of the fp32 bits `bits_max`, in its stored form: base - 4, and 0 for a run of
  /// zeros. Leaves room for rounding the largest magnitude up into the next octave. That of a NaN is that of infinity,
  /// because NaNs differ between processors.
  PENSTOCK_ELEMENT static U32 stored_base(U32 bits_max) {
    constexpr U32 below_fine = (1u << (23 - fine_bits)) - 1, infinity = 0x7f800000u;
    const U32 top = ((bits_max < infinity ? bits_max : infinity) + below_fine) >> 23;
    return top > last_exponent + 4 ? top - last_exponent - 4 : 0;
  }

 private:
  template <int kept, class W>
  PENSTOCK_ELEMENT static W rounded(W word, W random) {
    if constexpr (kept == 7) {
      return word;
    } else {
      return (word + (random >> (9 + kept))) >> (7 - kept);
    }
  }
};

/// 2^n, for n of -126 to 127.
PENSTOCK_ELEMENT float power_of_two(int n) {
  return kernels::float_of(static_cast<U32>(n + 127) << 23);
}

/// m's part of a word. A code is decoded to the fp32 number with the code's exponent field, times a power of two; fp32
/// subnormals represent the code's subnormals. Scaling by a power of two is exact, except for the last bits of results
/// that become subnormal.
template <class Lane>
struct Q8M {
  using F = typename Lane::F;
  using U = typename Lane::U;
  using W = typename Lane::W;
  using Operand = typename Lane::Operand;
  using Code = Q8Code<16, 3, 4, 5>;
  /// 2^base and 2^-base. A base above 120, for m of 4096 and more, does not fit one fp32 number: then these are 2^120
  /// and 2^-120, and `rest` is the remaining exponent.
  Operand up, down;
  int rest;

  PENSTOCK_ELEMENT explicit Q8M(U32 stored_base) {
    const int base = static_cast<int>(stored_base) + 4, most = base < 120 ? base : 120;
    up = Operand(power_of_two(most));
    down = Operand(power_of_two(-most));
    rest = base - most;
  }
  /// The value of a word's m times `factor`. Scale and factor are one multiplication; the scale is a power of two, so
  /// the result is rounded as if they were two.
  PENSTOCK_ELEMENT F decoded(W word, Operand factor) const {
    const W magnitude = Code::template decoded<Lane>((word >> 7) & W(U16{0xff}));
    F m = Lane::value_of(Lane::upper(magnitude | (word & W(U16{0x8000}))));
    if (rest != 0) m = m * Operand(power_of_two(rest));
    return m * (up * factor);
  }
  /// A word with this m, and zeros for v.
  PENSTOCK_ELEMENT W encoded(F m, U random) const {
    m = m * down;
    if (rest != 0) m = m * Operand(power_of_two(-rest));
    const W half = Lane::upper_words(dithered(Lane::bits_of(m), random));
    const W magnitude =
        Code::template encoded<Lane>(half & W(U16{0x7fff}), Lane::lower_words(random)) & W(U16{0xff});
    return (magnitude << 7) | (half & W(U16{0x8000}));
  }
};

/// The code of v.
template <class Lane>
struct Q8V {
  using F = typename Lane::F;
  using U = typename Lane::U;
  using W = typename Lane::W;
  using Code = Q8Code<32, 4, 12, 7>;
  W base;

  PENSTOCK_ELEMENT explicit Q8V(U32 stored_base) : base(static_cast<U16>((stored_base + 4) << 7)) {}

  PENSTOCK_ELEMENT static W joined(W word, W nibble) { return ((word & W(U16{0x7f})) << 4) | nibble; }
  PENSTOCK_ELEMENT static W word_part(W code) { return (code >> 4) & W(U16{0x7f}); }
  PENSTOCK_ELEMENT static W nibble_part(W code) { return code & W(U16{0xf}); }

  PENSTOCK_ELEMENT F decoded(W code) const {
    return Lane::value_of(Lane::upper(Code::template decoded<Lane>(code) + base));
  }
  /// The upper half of v, which must not be negative, rounded stochastically.
  PENSTOCK_ELEMENT static W rounded(F v, U random) {
    return Lane::upper_words(dithered(Lane::bits_of(v), random));
  }
  PENSTOCK_ELEMENT W encoded(W rounded_v, U random) const {
    return Code::template encoded<Lane>(Lane::excess(rounded_v, base), Lane::lower_words(random));
  }
};

}  // namespace penstock::kernels
