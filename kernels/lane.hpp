#pragma once

// What the kernels' formulas are written over. A Lane says what F (fp32) and U (32-bit unsigned) are, which
// have
// + - *, and << >> & |, and has as static members:
//   size                  elements at a time
//   quotient, root        of F, correctly rounded (IEEE 754)
//   bits_of, value_of     F as U and back
//   larger                of two U as two's complement numbers
//   shifted_right_signed  of U as a two's complement number
//   multiples<step>       {0, step, 2 step, …}
//   load, store           of float, Bf16, Fp16 as F; _u8 and _u16 of integers as U, whose low bits are stored
// No standard headers, for the reason given in element.hpp.

#include "kernels/element.hpp"

namespace penstock::kernels {

/// Scalars, on the host and on the device.
struct ScalarLane {
  using F = float;
  using U = U32;
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
  PENSTOCK_ELEMENT static U larger(U a, U b) {
    return static_cast<int>(a) < static_cast<int>(b) ? b : a;
  }
  PENSTOCK_ELEMENT static U shifted_right_signed(U x, int bits) {
    return static_cast<U>(static_cast<int>(x) >> bits);
  }
  template <U32 step>
  PENSTOCK_ELEMENT static U multiples() {
    return 0;
  }

  PENSTOCK_ELEMENT static U load_u16(const U16* from) {
    return *from;
  }
  PENSTOCK_ELEMENT static void store_u16(U16* to, U x) {
    *to = static_cast<U16>(x);
  }
  PENSTOCK_ELEMENT static U load_u8(const U8* from) {
    return *from;
  }
  PENSTOCK_ELEMENT static void store_u8(U8* to, U x) {
    *to = static_cast<U8>(x);
  }
  template <class T>
  PENSTOCK_ELEMENT static F load(const T* from) {
    return widen(*from);
  }
  template <class T>
  PENSTOCK_ELEMENT static void store(T* to, F x) {
    *to = narrow<T>(x);
  }
};

}  // namespace penstock::kernels
