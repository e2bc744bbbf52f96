#pragma once

// What the kernels' formulas are written over. A Lane says what F (fp32), U (32-bit unsigned) and W (16-bit
// unsigned) are, one number of each for an element. They have + - * (F), + << >> & | (U, W), and a Lane has
// as static members:
//   size                 elements at a time
//   quotient, root       of F, correctly rounded (IEEE 754)
//   bits_of, value_of    F as U and back
//   Most, larger         one U or several, of which larger(Most, U) keeps the larger ones
//   multiples<step>      {0, step, 2 step, …} as U
//   load, store          of float, Bf16, Fp16 as F
//   store_past_caches    the same by way of no cache, for what nobody reads soon
//   load_upper, store_upper, load_lower_signed, store_lower
//                        of 16-bit integers as halves of U
// and, where formats of eight bits are made of it:
//   upper, upper_words   W as the upper half of U and back
//   load_bytes, load_bytes_signed, store_bytes
//                        of 8-bit integers as W
//   excess               of two W: how far the first exceeds the second, or 0
//   load_in_order, store_in_order
//                        of fp32 in whatever order suits
// No standard headers, for the reason given in element.hpp.

#include "kernels/element.hpp"

namespace penstock::kernels {

/// Scalars, on the host and on the device.
struct ScalarLane {
  using F = float;
  using U = U32;
  using W = U32;  // its low half
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
  PENSTOCK_ELEMENT static Most larger(Most most, U x) {
    return most < x ? x : most;
  }
  template <U32 step>
  PENSTOCK_ELEMENT static U multiples() {
    return 0;
  }

  PENSTOCK_ELEMENT static U load_upper(const U16* from) {
    return U{*from} << 16;
  }
  PENSTOCK_ELEMENT static void store_upper(U16* to, U x) {
    *to = static_cast<U16>(x >> 16);
  }
  PENSTOCK_ELEMENT static U load_lower_signed(const U16* from) {
    return (*from ^ 0x8000u) - 0x8000u;
  }
  PENSTOCK_ELEMENT static void store_lower(U16* to, U x) {
    *to = static_cast<U16>(x);
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
  PENSTOCK_ELEMENT static void store_past_caches(T* to, F x) {
    store(to, x);
  }

  PENSTOCK_ELEMENT static U upper(W x) {
    return x << 16;
  }
  PENSTOCK_ELEMENT static W upper_words(U x) {
    return x >> 16;
  }
  PENSTOCK_ELEMENT static W load_bytes(const U8* from) {
    return *from;
  }
  PENSTOCK_ELEMENT static W load_bytes_signed(const U8* from) {
    return (*from ^ 0x80u) - 0x80u;
  }
  PENSTOCK_ELEMENT static void store_bytes(U8* to, W x) {
    *to = static_cast<U8>(x);
  }
  PENSTOCK_ELEMENT static W excess(W a, W b) {
    return a > b ? a - b : 0;
  }
  PENSTOCK_ELEMENT static F load_in_order(const float* from) {
    return *from;
  }
  PENSTOCK_ELEMENT static void store_in_order(float* to, F x) {
    *to = x;
  }
};

}  // namespace penstock::kernels
