#include "cpu_adam/adam_kernel.hpp"
#include "kernels/adam_formula.hpp"
#include "kernels/state_codes.hpp"

#include <smmintrin.h>
#include <xsimd/xsimd.hpp>

// Compiled with -march=x86-64-v2: SSE4.2, no F16C.
namespace penstock::detail {

namespace {

using Arch = xsimd::sse4_2;

__m128i widened_u16(const void* from) {
  return _mm_cvtepu16_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from)));
}
/// Saturates, so that the upper bits must go first.
__m128i low_u16(__m128i x) {
  const __m128i low = _mm_and_si128(x, _mm_set1_epi32(0xffff));
  return _mm_packus_epi32(low, low);
}
void narrow_u16(void* to, __m128i x) {
  _mm_storel_epi64(static_cast<__m128i*>(to), low_u16(x));
}
__m128i widened_u8(const void* from) {
  int four;
  __builtin_memcpy(&four, from, sizeof four);
  return _mm_cvtepu8_epi32(_mm_cvtsi32_si128(four));
}
void narrow_u8(void* to, __m128i x) {
  const __m128i low = _mm_and_si128(low_u16(x), _mm_set1_epi16(0xff));
  const int four = _mm_cvtsi128_si32(_mm_packus_epi16(low, low));
  __builtin_memcpy(to, &four, sizeof four);
}
__m128 widened_half(const kernels::Fp16* from) {
  return _mm_setr_ps(kernels::widen(from[0]), kernels::widen(from[1]), kernels::widen(from[2]),
                     kernels::widen(from[3]));
}
void narrow_half(kernels::Fp16* to, __m128 x) {
  alignas(16) float values[4];
  _mm_store_ps(values, x);
  for (int i = 0; i < 4; ++i) to[i] = kernels::narrow<kernels::Fp16>(values[i]);
}

__m128 exact_quotient(__m128 a, __m128 b) {
  return _mm_div_ps(a, b);
}
__m128 exact_root(__m128 x) {
  return _mm_sqrt_ps(x);
}

#include "cpu_adam/lane_xsimd.inl"

#include "cpu_adam/adam_kernel.inl"

}  // namespace

const AdamKernels adam_kernels_x86_64_v2 = all_kernels;

}  // namespace penstock::detail
