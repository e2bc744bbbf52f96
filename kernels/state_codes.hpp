#pragma once

// How a tile's state formats store masters and moments in few bits, as integer arithmetic on the bits of fp32,
// written once for scalars, SIMD lanes and CUDA. A Lane says what F (fp32), U (32-bit unsigned) and the few
// operations beside + - * << >> & | are; all of its integers but hashes and fp32 bits are below 2^31. No standard
// headers, for the reason given in element.hpp.

#include "kernels/element.hpp"

namespace penstock::kernels {

/// Scalars as a Lane.
struct ScalarLane {
  using F = float;
  using U = U32;
  static constexpr unsigned long size = 1;

  PENSTOCK_ELEMENT static U bits_of(F x) { return kernels::bits_of(x); }
  PENSTOCK_ELEMENT static F value_of(U bits) { return kernels::float_of(bits); }
  PENSTOCK_ELEMENT static F to_float(U n) { return static_cast<float>(static_cast<int>(n)); }
  PENSTOCK_ELEMENT static U truncated(F x) { return static_cast<U>(static_cast<int>(x)); }
  PENSTOCK_ELEMENT static U if_less(U a, U b, U then, U otherwise) { return a < b ? then : otherwise; }
  PENSTOCK_ELEMENT static U larger(U a, U b) { return a < b ? b : a; }
  PENSTOCK_ELEMENT static U iota() { return 0; }

  PENSTOCK_ELEMENT static U load_u16(const U16* from) { return *from; }
  PENSTOCK_ELEMENT static void store_u16(U16* to, U x) { *to = static_cast<U16>(x); }
  PENSTOCK_ELEMENT static U load_u8(const U8* from) { return *from; }
  PENSTOCK_ELEMENT static void store_u8(U8* to, U x) { *to = static_cast<U8>(x); }
  template <class T>
  PENSTOCK_ELEMENT static F load(const T* from) {
    return widen(*from);
  }
  template <class T>
  PENSTOCK_ELEMENT static void store(T* to, F x) {
    *to = narrow<T>(x);
  }
};

// ---- A master in two halves --------------------------------------------------------------------------------
// The upper half is the master rounded to bf16, halfway cases away from zero in the bit pattern (upwards in
// magnitude), and is the parameter; the lower is what is missing, as a 16-bit two's complement number. No
// rounding to even: with it 32768 patterns would have no remainder of 16 bits.

template <class U>
PENSTOCK_ELEMENT U master_upper(U bits) {
  return (bits + U(0x8000u)) >> 16;
}
/// In its low 16 bits.
template <class U>
PENSTOCK_ELEMENT U master_remainder(U bits, U upper) {
  return bits - (upper << 16);
}
template <class U>
PENSTOCK_ELEMENT U joined_master(U upper, U remainder) {
  return (upper << 16) + (remainder ^ U(0x8000u)) - U(0x8000u);
}

// ---- Stochastic rounding -----------------------------------------------------------------------------------

/// 32 bits that look random, equal for equal arguments: Wellons' lowbias32 (nullprogram.com, 2018, public domain).
template <class U>
PENSTOCK_ELEMENT U hashed(U x) {
  x = x ^ (x >> 16);
  x = x * U(0x7feb352du);
  x = x ^ (x >> 15);
  x = x * U(0x846ca68bu);
  return x ^ (x >> 16);
}

/// The bf16 next below or above in magnitude, with probabilities that make the expected value that of `bits`;
/// `random` has 16 bits.
template <class U>
PENSTOCK_ELEMENT U bf16_stochastic(U bits, U random) {
  return (bits + random) >> 16;
}

// ---- Eight-bit codes ---------------------------------------------------------------------------------------
// A small floating-point number relative to the largest of a run of q8_run elements: 3 mantissa bits, and 4
// exponent bits beside a sign for m, 5 for v. `base` is the fp32 exponent field that exponent code 0 stands for;
// codes below 8 are subnormal. Power-of-two scales, so that scaling rounds nothing.

inline constexpr unsigned q8_run = 256;
inline constexpr U32 q8_base_min = 4;  // so that quantum and its inverse are normal
inline constexpr U32 q8_m_exponent_max = 15, q8_v_exponent_max = 31;

/// The base for magnitudes up to that of fp32 `bits_max`, and as it is stored: 0 for a run of zeros. The largest can
/// be rounded up too, or it would never grow beyond its binade.
PENSTOCK_ELEMENT U32 q8_stored_base(U32 bits_max, U32 exponent_max) {
  const U32 top = (bits_max + 0xfffffu) >> 23;
  return top > exponent_max + q8_base_min ? top - exponent_max - q8_base_min : 0;
}

template <class Lane>
struct Q8Scale {
  using F = typename Lane::F;
  using U = typename Lane::U;
  U base, normal_min;
  F quantum, inverse_quantum;

  PENSTOCK_ELEMENT explicit Q8Scale(U32 stored_base)
      : base(stored_base + q8_base_min),
        normal_min((stored_base + q8_base_min + 1) << 23),
        quantum(kernels::float_of((stored_base + q8_base_min - 2) << 23)),
        inverse_quantum(kernels::float_of((256 - stored_base - q8_base_min) << 23)) {}

  PENSTOCK_ELEMENT F decoded(U code) const {
    const U normal = (code << 20) + (base << 23);
    return Lane::value_of(Lane::if_less(code, U(8u), Lane::bits_of(Lane::to_float(code) * quantum), normal));
  }

  /// The code of the magnitude with these bits, at most `code_max`, rounded as bf16_stochastic does.
  PENSTOCK_ELEMENT U encoded(U bits, U random, U code_max) const {
    const U normal = ((bits + (random << 4)) >> 20) - (base << 3);
    const F small = Lane::value_of(Lane::if_less(bits, normal_min, bits, U(0u)));
    const U subnormal = Lane::truncated(small * inverse_quantum + Lane::to_float(random) * F(0x1p-16f));
    const U code = Lane::if_less(bits, normal_min, subnormal, normal);
    return Lane::if_less(code, code_max, code, code_max);
  }
};

}  // namespace penstock::kernels
