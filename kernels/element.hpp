#pragma once

// Scalar element operations shared by host and device code, so that each formula exists once.
//
// This header is compiled into translation units for instruction sets that the machine may not have. All functions are
// forced inline and no standard header is included: otherwise such a unit would emit weak functions, and the linker
// could pick them for code that must run everywhere.

#if defined(__CUDACC__)
#define PENSTOCK_ELEMENT __host__ __device__ __forceinline__
#else
#define PENSTOCK_ELEMENT [[gnu::always_inline]] inline
#endif

namespace penstock::kernels {

using U8 = unsigned char;
using U16 = unsigned short;
using U32 = unsigned int;

/// Storage types of the 16-bit formats; all arithmetic is fp32.
struct Bf16 {
  U16 bits;
};
struct Fp16 {
  U16 bits;
};

/// Reads the bytes at `from` as a T, whatever type was stored there.
template <class T>
PENSTOCK_ELEMENT T read_as(const void* from) {
  T x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}

PENSTOCK_ELEMENT U32 bits_of(float value) {
  return __builtin_bit_cast(U32, value);
}
PENSTOCK_ELEMENT float float_of(U32 bits) {
  return __builtin_bit_cast(float, bits);
}

PENSTOCK_ELEMENT float widen(float value) {
  return value;
}
PENSTOCK_ELEMENT float widen(Bf16 value) {
  return float_of(static_cast<U32>(value.bits) << 16);
}

/// Computes all cases and selects one, so that a loop over it vectorises. Signalling NaNs become quiet.
PENSTOCK_ELEMENT float widen(Fp16 value) {
  constexpr U32 rebias = (127 - 15) << 23;
  const U32 magnitude = value.bits & 0x7fffu;
  const U32 sign = static_cast<U32>(value.bits & 0x8000u) << 16;
  const U32 normal = (magnitude << 13) + rebias;
  const U32 subnormal = bits_of(static_cast<float>(static_cast<int>(magnitude)) * 0x1p-24f);
  const U32 special = normal + rebias;
  const U32 quiet = special | 0x400000u;
  U32 bits = magnitude < 0x0400u ? subnormal : normal;
  bits = magnitude >= 0x7c00u ? special : bits;
  bits = magnitude > 0x7c00u ? quiet : bits;
  return float_of(bits | sign);
}

/// Rounds to nearest, ties to even. A NaN becomes a quiet NaN of the same sign.
template <class To>
PENSTOCK_ELEMENT To narrow(float value);

template <>
PENSTOCK_ELEMENT float narrow<float>(float value) {
  return value;
}

template <>
PENSTOCK_ELEMENT Bf16 narrow<Bf16>(float value) {
  const U32 bits = bits_of(value);
  const U32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const U32 quiet = (bits >> 16) | 0x40u;
  return {static_cast<U16>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded)};
}

template <>
PENSTOCK_ELEMENT Fp16 narrow<Fp16>(float value) {
  constexpr U32 rebias = (127 - 15) << 23;
  const U32 bits = bits_of(value);
  const U32 magnitude = bits & 0x7fffffffu;
  const U32 sign = (bits >> 16) & 0x8000u;
  const U32 normal = (magnitude - rebias + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // An fp32 ulp in [0.5, 1) is fp16's smallest subnormal, so this addition rounds to a multiple of it.
  const U32 subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  const U32 quiet = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  U32 narrowed = magnitude < 0x38800000u ? subnormal : normal;
  narrowed = magnitude >= 0x477ff000u ? 0x7c00u : narrowed;
  narrowed = magnitude > 0x7f800000u ? quiet : narrowed;
  return {static_cast<U16>(narrowed | sign)};
}

}  // namespace penstock::kernels
