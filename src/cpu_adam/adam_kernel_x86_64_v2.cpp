#include "cpu_adam/adam_kernel.hpp"
#include "kernels/adam_formula.hpp"
#include "kernels/one_moment_formulas.hpp"
#include "kernels/q8_bound.hpp"
#include "kernels/state_codes.hpp"

#include <smmintrin.h>
#include <xsimd/xsimd.hpp>

// Compiled with -march=x86-64-v2: SSE4.2, no F16C.
namespace penstock::cpu_adam::detail {

namespace {

using Arch = xsimd::sse4_2;

__m128i half_a_register_from(const void* from) {
  return _mm_loadl_epi64(static_cast<const __m128i*>(from));
}
/// The lower halves of numbers below 2^16; more would saturate.
__m128i words_of(__m128i x) {
  return _mm_packus_epi32(x, x);
}
__m128i upper_from(const void* from) {
  return _mm_unpacklo_epi16(_mm_setzero_si128(), half_a_register_from(from));
}
__m128i upper_of(__m128i x) {
  return words_of(_mm_srli_epi32(x, 16));
}
__m128 half_from(const kernels::Fp16* from) {
  return _mm_setr_ps(kernels::widen(from[0]), kernels::widen(from[1]), kernels::widen(from[2]),
                     kernels::widen(from[3]));
}
__m128i half_of(__m128 x) {
  alignas(16) float values[4];
  kernels::Fp16 halves[4];
  _mm_store_ps(values, x);
  for (int i = 0; i < 4; ++i) halves[i] = kernels::narrow<kernels::Fp16>(values[i]);
  return half_a_register_from(halves);
}
void put(void* to, __m128i words) {
  _mm_storel_epi64(static_cast<__m128i*>(to), words);
}
// Non-temporal stores of eight bytes each are slower than ordinary ones.
void put_nontemporal(void* to, __m128i words) {
  put(to, words);
}
void put_nontemporal(float* to, __m128 x) {
  _mm_stream_ps(to, x);
}
void fence() {
  _mm_sfence();
}
__m128i nibbles_from(const kernels::U8* from) {
  const __m128i x = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(kernels::read_as<int>(from)));
  return _mm_and_si128(_mm_or_si128(x, _mm_slli_epi32(x, 12)), _mm_set1_epi32(0x000f000f));
}
void nibbles_to(kernels::U8* to, __m128i x) {
  const __m128i joined = _mm_or_si128(x, _mm_srli_epi32(x, 12));
  const __m128i words = words_of(_mm_and_si128(joined, _mm_set1_epi32(0xff)));
  const int bytes = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
  __builtin_memcpy(to, &bytes, sizeof bytes);
}
__m128i lower_halves(__m128i below, __m128i above) {
  return _mm_blend_epi16(below, _mm_slli_epi32(above, 16), 0xaa);
}
__m128i upper_halves(__m128i below, __m128i above) {
  return _mm_blend_epi16(_mm_srli_epi32(below, 16), above, 0xaa);
}
__m128 even_of(__m128 first, __m128 second) {
  return _mm_shuffle_ps(first, second, _MM_SHUFFLE(2, 0, 2, 0));
}
__m128 odd_of(__m128 first, __m128 second) {
  return _mm_shuffle_ps(first, second, _MM_SHUFFLE(3, 1, 3, 1));
}

__m128 first_of(__m128 even, __m128 odd) {
  return _mm_unpacklo_ps(even, odd);
}
__m128 second_of(__m128 even, __m128 odd) {
  return _mm_unpackhi_ps(even, odd);
}

__m128 exact_quotient(__m128 a, __m128 b) {
  return _mm_div_ps(a, b);
}
__m128 exact_root(__m128 x) {
  return _mm_sqrt_ps(x);
}

#include "cpu_adam/largest_x86.inl"

#include "cpu_adam/lane_xsimd.inl"

#include "cpu_adam/adam_kernel.inl"

}  // namespace

const Kernels adam_kernels_x86_64_v2 = all_kernels;

}  // namespace penstock::cpu_adam::detail
