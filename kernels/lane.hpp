#pragma once

// Lane is the template parameter of the kernels' formulas: a SIMD vector of one element, one register or two. It
// defines the types F (fp32) and U (32-bit unsigned), with one number per element, and Operand and Mask, one number for
// all elements. F and Operand support + and *; U and Mask support + >> and &. Static members:
//   size                 number of elements
//   quotient, root       division and square root of F, correctly rounded (IEEE 754)
//   sign                 1 or -1 with the sign of F; F itself where it is a zero or NaN
//   bits_of, value_of    F as U and back
//   Most, larger         the running maximum: starts as Most(0u); larger(Most, U) is the maximum of both
//   load, store          float, Bf16 or Fp16 in memory as F
//   store_nontemporal    the same as a non-temporal store, for data that is not read soon
// A Lane for formats narrower than fp32 also defines | of U, and W (16-bit unsigned), with + - << >> & |, and:
//   multiples<step>      {0, step, 2 step, …} as U
//   larger_upper         larger() for numbers given by their upper halves, as W
//   load_words, store_words
//                        16-bit integers in memory as W. No formula shifts a bit out of a W to the left
//   upper_words, lower_words, joined
//                        the halves of U, and the U that has given halves
//   upper                the U with W as its upper half and zeros below
//   load_nibbles, store_nibbles
//                        4-bit integers in memory as W, by the number of the first; two in a byte, the one of the even
//                        number in its lower half. A lane of several elements begins at an even number
//   excess, smaller      of two W: max(a - b, 0), min(a, b)
//   smaller, larger      of U and Mask: min; of two U: max
//   any_equal            whether any element of a W is a given number
// No standard headers, for the reason given in element.hpp.

#include "kernels/element.hpp"

namespace penstock::kernels {

/// A lane of one element, on the host and on the device.
struct ScalarLane {
  using F = float;
  using U = U32;
  using W = U32;  // only the low half is used
  using Operand = F;
  using Mask = U;
  using Most = U32;
  static constexpr unsigned long size = 1;

  PENSTOCK_ELEMENT static U bits_of(F x) { return kernels::bits_of(x); }
  PENSTOCK_ELEMENT static F value_of(U bits) { return kernels::float_of(bits); }
  PENSTOCK_ELEMENT static F quotient(F a, F b) { return a / b; }
  PENSTOCK_ELEMENT static F root(F x) {
#if defined(__CUDA_ARCH__)
    return __fsqrt_rn(x);
#else
    return __builtin_sqrtf(x);
#endif
  }
  PENSTOCK_ELEMENT static F sign(F x) {
    return x > 0 ? 1.0f : x < 0 ? -1.0f : x;
  }
  PENSTOCK_ELEMENT static Most larger(Most most, U x) {
    return most < x ? x : most;
  }
  PENSTOCK_ELEMENT static Most larger_upper(Most most, W x) {
    return larger(most, x << 16);
  }
  template <U32 step>
  PENSTOCK_ELEMENT static U multiples() {
    return 0;
  }

  template <class T>
  PENSTOCK_ELEMENT static F load(const T* from) {
    return widen(*from);
  }
  template <class T>
  PENSTOCK_ELEMENT static void store(T* to, F x) {
    *to = narrow<T>(x);
  }

  template <class T>
  PENSTOCK_ELEMENT static void store_nontemporal(T* to, F x) {
    store(to, x);
  }

  PENSTOCK_ELEMENT static W load_words(const U16* from) {
    return *from;
  }
  PENSTOCK_ELEMENT static void store_words(U16* to, W x) {
    *to = static_cast<U16>(x);
  }
  PENSTOCK_ELEMENT static W upper_words(U x) {
    return x >> 16;
  }
  PENSTOCK_ELEMENT static W lower_words(U x) {
    return x & 0xffffu;
  }
  PENSTOCK_ELEMENT static U joined(W upper, W lower) {
    return upper << 16 | lower;
  }
  PENSTOCK_ELEMENT static U upper(W x) {
    return x << 16;
  }
  PENSTOCK_ELEMENT static W load_nibbles(const U8* from, unsigned long i) {
    return (U32{from[i / 2]} >> (i % 2 * 4)) & 0xfu;
  }
  /// Keeps the other nibble of the byte.
  PENSTOCK_ELEMENT static void store_nibbles(U8* to, unsigned long i, W x) {
    const U32 shift = i % 2 * 4;
    to[i / 2] = static_cast<U8>((to[i / 2] & (0xf0u >> shift)) | x << shift);
  }
  PENSTOCK_ELEMENT static W excess(W a, W b) {
    return a > b ? a - b : 0;
  }
  PENSTOCK_ELEMENT static W smaller(W a, W b) {
    return a < b ? a : b;
  }
  PENSTOCK_ELEMENT static bool any_equal(W a, U16 b) {
    return a == b;
  }
};

}  // namespace penstock::kernels
