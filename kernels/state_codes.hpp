#pragma once

// How a tile's state formats store masters and moments in few bits, as integer arithmetic on the bits of
// fp32, written once over lanes. No standard headers, for the reason given in element.hpp.

#include "kernels/lane.hpp"

namespace penstock::kernels {

// ---- A master in two halves ----
// The upper half is the master rounded to bf16, halfway cases away from zero in the bit pattern (upwards in
// magnitude), and is the parameter; the lower is what is missing, as a 16-bit two's complement number: the
// master's own lower half. No rounding to even: with it 32768 patterns would have no remainder of 16 bits.

template <class Lane>
struct SplitMaster {
  typename Lane::W parameter, remainder;

  PENSTOCK_ELEMENT explicit SplitMaster(typename Lane::U bits)
      : parameter(Lane::upper_words(bits)), remainder(Lane::lower_words(bits)) {
    parameter = parameter + (remainder >> 15);
  }
  PENSTOCK_ELEMENT SplitMaster(typename Lane::W upper, typename Lane::W lower)
      : parameter(upper), remainder(lower) {}

  [[nodiscard]] PENSTOCK_ELEMENT typename Lane::U bits() const {
    return Lane::joined(parameter - (remainder >> 15), remainder);
  }
};

// ---- Stochastic rounding ----
// Adding random bits to those that are cut off makes the expected value of what remains that of the whole, to
// within 2^-16 (bf16) or 2^-20 (eight bits) of the distance of what can remain.

/// Element i of a block rounds by i steps of this (2^32 / golden ratio) from the block's seed. For a seed
/// that is uniform, so are the upper bits of each element's number; only neighbours' numbers hang together.
inline constexpr U32 random_step = 0x9e3779b1u;

/// Number i of the block, and of those after it in the lanes beside.
template <class Lane>
PENSTOCK_ELEMENT typename Lane::U random_of(U32 seed, unsigned long i) {
  using U = typename Lane::U;
  return U(seed + random_step * static_cast<U32>(i)) + Lane::template multiples<random_step>();
}

/// `bits` with what is random added below its upper `kept` bits: cut off the others. One number serves both
/// moments of an element, whose ratio varies the less for it.
template <int kept, class U>
PENSTOCK_ELEMENT U dithered(U bits, U random) {
  return bits + (random >> kept);
}

// ---- Eight-bit codes ----
// Small floating-point numbers with 3 mantissa bits, relative to a bound of those of their run of q8_run
// elements. `base` is the fp32 exponent field that exponent code 0 stands for: scaling by a power of two
// rounds nothing, but for the last bits of what becomes subnormal.
//   m  sign, 4 exponent bits, subnormals and zero as IEEE 754 has them. Base 4 to 240.
//   v  5 exponent bits, none of them special: nothing is zero, for where m is not, it would be divided by
//      epsilon alone. What is smaller than the smallest, 2^-31 of the bound's power of two, becomes it.
//      Base 4 to 224.
// Codes are packed and unpacked as the upper 16 bits of the fp32 number, of which 12 are kept.

inline constexpr unsigned q8_run = 256;
inline constexpr U32 q8_m_exponent_max = 15, q8_v_exponent_max = 31;

/// The base for magnitudes up to that of fp32 `bits_max`, and as it is stored: less 4, 0 for a run of zeros.
/// The largest can be rounded up too, or it would never grow beyond its binade.
PENSTOCK_ELEMENT U32 q8_stored_base(U32 bits_max, U32 exponent_max) {
  const U32 top = (bits_max + 0xfffffu) >> 23;
  return top > exponent_max + 4 ? top - exponent_max - 4 : 0;
}

/// 2^n, for n of -126 to 127.
PENSTOCK_ELEMENT float power_of_two(int n) {
  return kernels::float_of(static_cast<U32>(n + 127) << 23);
}

/// As fp32 numbers whose exponent field is the code's, times a power of two: fp32's own subnormals are the
/// code's.
template <class Lane>
struct Q8M {
  using F = typename Lane::F;
  using U = typename Lane::U;
  using W = typename Lane::W;
  using Operand = typename Lane::Operand;
  /// 2^base and 2^-base; of larger ones, for an m of 256 and more, what one fp32 holds, and the rest's
  /// exponent.
  Operand up, down;
  int rest;

  PENSTOCK_ELEMENT explicit Q8M(U32 stored_base) {
    const int base = static_cast<int>(stored_base) + 4, most = base < 120 ? base : 120;
    up = Operand(power_of_two(most));
    down = Operand(power_of_two(-most));
    rest = base - most;
  }
  /// Of a code whose sign is extended, times a factor: one multiplication is both, and rounds alike.
  PENSTOCK_ELEMENT F decoded(W code, Operand factor) const {
    F m = Lane::value_of(Lane::upper((code << 4) & W(0x87f0u)));
    if (rest != 0) m = m * Operand(power_of_two(rest));
    return m * (up * factor);
  }
  /// In the lower eight bits.
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
  /// Of a v that is not negative: what encoded() keeps the upper 12 bits of.
  PENSTOCK_ELEMENT static W rounded(F v, U random) {
    return Lane::upper_words(dithered<12>(Lane::bits_of(v), random));
  }
  PENSTOCK_ELEMENT W encoded(W rounded_v) const { return Lane::excess(rounded_v >> 4, base); }
};

}  // namespace penstock::kernels
