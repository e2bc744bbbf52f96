#pragma once

// A Lane (lane.hpp) of two neighbouring elements in one thread of a CUDA kernel: its W is two 16-bit numbers in one
// register, so that one integer instruction computes both. Internal to the CUDA sources.

#include "kernels/lane.hpp"

// Instructions for two 16-bit numbers exist from Hopper on; elsewhere the halves are computed one after the other.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PENSTOCK_HAS_PAIR_INSTRUCTIONS 1
#else
#define PENSTOCK_HAS_PAIR_INSTRUCTIONS 0
#endif

namespace penstock::kernels {

struct PairLane {
  struct F {
    float a, b;  ///< of the even element and of the odd one

    PENSTOCK_ELEMENT friend F operator+(F x, F y) { return {x.a + y.a, x.b + y.b}; }
    PENSTOCK_ELEMENT friend F operator+(F x, float y) { return {x.a + y, x.b + y}; }
    PENSTOCK_ELEMENT friend F operator*(F x, F y) { return {x.a * y.a, x.b * y.b}; }
    PENSTOCK_ELEMENT friend F operator*(F x, float y) { return {x.a * y, x.b * y}; }
  };
  struct U {
    U32 a, b;

    PENSTOCK_ELEMENT explicit U(U32 x) : a(x), b(x) {}
    PENSTOCK_ELEMENT U(U32 even, U32 odd) : a(even), b(odd) {}
    PENSTOCK_ELEMENT friend U operator+(U x, U y) { return {x.a + y.a, x.b + y.b}; }
    PENSTOCK_ELEMENT friend U operator&(U x, U32 y) { return {x.a & y, x.b & y}; }
    PENSTOCK_ELEMENT friend U operator>>(U x, int n) { return {x.a >> n, x.b >> n}; }
  };
  /// The even element's number is in the lower half. No + or - of the kernels' formulas carries or borrows, and no <<
  /// shifts a bit out of its half.
  struct W {
    U32 both;

    W() = default;
    PENSTOCK_ELEMENT explicit W(U16 x) : both(x * 0x10001u) {}
    /// The numbers of two neighbours in an array.
    PENSTOCK_ELEMENT explicit W(const U16* pair) : both(pair[0] | U32{pair[1]} << 16) {}
    PENSTOCK_ELEMENT static W of(U32 both) {
      W x;
      x.both = both;
      return x;
    }
    PENSTOCK_ELEMENT void put(U16* pair) const {
      pair[0] = static_cast<U16>(both), pair[1] = static_cast<U16>(both >> 16);
    }
    [[nodiscard]] PENSTOCK_ELEMENT U32 of_even() const { return both & 0xffffu; }
    [[nodiscard]] PENSTOCK_ELEMENT U32 of_odd() const { return both >> 16; }
    /// With a zero for the odd element.
    [[nodiscard]] PENSTOCK_ELEMENT W even_only() const { return of(of_even()); }
    PENSTOCK_ELEMENT friend W operator+(W x, W y) { return of(x.both + y.both); }
    PENSTOCK_ELEMENT friend W operator-(W x, W y) { return of(x.both - y.both); }
    PENSTOCK_ELEMENT friend W operator&(W x, W y) { return of(x.both & y.both); }
    PENSTOCK_ELEMENT friend W operator|(W x, W y) { return of(x.both | y.both); }
    PENSTOCK_ELEMENT friend W operator<<(W x, int n) { return of(x.both << n); }
    PENSTOCK_ELEMENT friend W operator>>(W x, int n) { return of(x.both >> n & (0xffffu >> n) * 0x10001u); }
  };
  using Operand = float;
  using Mask = U32;
  using Most = U32;
  static constexpr unsigned long size = 2;

  PENSTOCK_ELEMENT static U bits_of(F x) { return {kernels::bits_of(x.a), kernels::bits_of(x.b)}; }
  PENSTOCK_ELEMENT static F value_of(U bits) {
    return {kernels::float_of(bits.a), kernels::float_of(bits.b)};
  }
  PENSTOCK_ELEMENT static F quotient(F x, F y) { return {x.a / y.a, x.b / y.b}; }
  PENSTOCK_ELEMENT static F root(F x) { return {ScalarLane::root(x.a), ScalarLane::root(x.b)}; }
  PENSTOCK_ELEMENT static Most larger(Most most, U x) {
    return ScalarLane::larger(ScalarLane::larger(most, x.a), x.b);
  }
  /// What the other element adds below the odd one's upper half does not matter to Largest.
  PENSTOCK_ELEMENT static Most larger_upper(Most most, W x) { return larger(most, {x.both << 16, x.both}); }
  template <U32 step>
  PENSTOCK_ELEMENT static U multiples() {
    return {0, step};
  }

  PENSTOCK_ELEMENT static W upper_words(U x) { return W::of(chosen<upper_halves>(x)); }
  PENSTOCK_ELEMENT static W lower_words(U x) { return W::of(chosen<lower_halves>(x)); }
  PENSTOCK_ELEMENT static U joined(W upper, W lower) {
    const U x{lower.both, upper.both};
    return {chosen<lower_halves>(x), chosen<upper_halves>(x)};
  }
  PENSTOCK_ELEMENT static U upper(W x) { return {x.both << 16, x.both & 0xffff0000u}; }
  PENSTOCK_ELEMENT static W excess(W x, W y) { return larger(x, y) - y; }
  PENSTOCK_ELEMENT static W smaller(W x, W y) {
#if PENSTOCK_HAS_PAIR_INSTRUCTIONS
    return W::of(__vminu2(x.both, y.both));
#else
    return W::of(ScalarLane::smaller(x.both & 0xffffu, y.both & 0xffffu) |
                 ScalarLane::smaller(x.both & 0xffff0000u, y.both & 0xffff0000u));
#endif
  }
  PENSTOCK_ELEMENT static W larger(W x, W y) {
#if PENSTOCK_HAS_PAIR_INSTRUCTIONS
    return W::of(__vmaxu2(x.both, y.both));
#else
    return W::of(ScalarLane::larger(x.both & 0xffffu, y.both & 0xffffu) |
                 ScalarLane::larger(x.both & 0xffff0000u, y.both & 0xffff0000u));
#endif
  }

 private:
  /// Four bytes of x.a (0 to 3) and x.b (4 to 7), one hexadecimal digit for each, the lowest last.
  template <U32 bytes>
  PENSTOCK_ELEMENT static U32 chosen(U x) {
#if defined(__CUDA_ARCH__)
    return __byte_perm(x.a, x.b, bytes);
#else
    static_assert(bytes == upper_halves || bytes == lower_halves);
    return bytes == upper_halves ? x.a >> 16 | (x.b & 0xffff0000u) : (x.a & 0xffffu) | x.b << 16;
#endif
  }
  static constexpr U32 upper_halves = 0x7632, lower_halves = 0x5410;
};

}  // namespace penstock::kernels
