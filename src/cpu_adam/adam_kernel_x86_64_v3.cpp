#include "cpu_adam/adam_kernel.hpp"
#include "kernels/adam_formula.hpp"
#include "kernels/one_moment_formulas.hpp"
#include "kernels/q8_bound.hpp"
#include "kernels/state_codes.hpp"

#include <immintrin.h>
#include <xsimd/xsimd.hpp>

// Compiled with -march=x86-64-v3: AVX2 and F16C. FMA is there and must not be used.
namespace penstock::cpu_adam::detail {

namespace {

using Arch = xsimd::avx2;

__m128i half_a_register_from(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}
/// The lower halves of numbers below 2^16; more would saturate.
__m128i words_of(__m256i x) {
  return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}
__m256i upper_from(const void* from) {
  return _mm256_slli_epi32(_mm256_cvtepu16_epi32(half_a_register_from(from)), 16);
}
__m128i upper_of(__m256i x) {
  return words_of(_mm256_srli_epi32(x, 16));
}
__m256 half_from(const void* from) {
  return _mm256_cvtph_ps(half_a_register_from(from));
}
__m128i half_of(__m256 x) {
  return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}
void put(void* to, __m128i words) {
  _mm_storeu_si128(static_cast<__m128i*>(to), words);
}
void put_nontemporal(void* to, __m128i words) {
  _mm_stream_si128(static_cast<__m128i*>(to), words);
}
void put_nontemporal(float* to, __m256 x) {
  _mm256_stream_ps(to, x);
}
void fence() {
  _mm_sfence();
}
__m256i nibbles_from(const void* from) {
  const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from)));
  return _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32(x, 12)), _mm256_set1_epi32(0x000f000f));
}
void nibbles_to(void* to, __m256i x) {
  const __m256i joined = _mm256_or_si256(x, _mm256_srli_epi32(x, 12));
  const __m128i bytes = words_of(_mm256_and_si256(joined, _mm256_set1_epi32(0xff)));
  _mm_storel_epi64(static_cast<__m128i*>(to), _mm_packus_epi16(bytes, bytes));
}
/// The even or odd elements of both registers. The shuffle works within 128-bit halves; the permutation then puts the
/// 64-bit quarters in order.
template <int which>
__m256 every_other(__m256 first, __m256 second) {
  const __m256d halves = _mm256_castps_pd(_mm256_shuffle_ps(first, second, which));
  return _mm256_castpd_ps(_mm256_permute4x64_pd(halves, _MM_SHUFFLE(3, 1, 2, 0)));
}
__m256i lower_halves(__m256i below, __m256i above) {
  return _mm256_blend_epi16(below, _mm256_slli_epi32(above, 16), 0xaa);
}
__m256i upper_halves(__m256i below, __m256i above) {
  return _mm256_blend_epi16(_mm256_srli_epi32(below, 16), above, 0xaa);
}
__m256 even_of(__m256 first, __m256 second) {
  return every_other<_MM_SHUFFLE(2, 0, 2, 0)>(first, second);
}
__m256 odd_of(__m256 first, __m256 second) {
  return every_other<_MM_SHUFFLE(3, 1, 3, 1)>(first, second);
}

__m256 first_of(__m256 even, __m256 odd) {
  return _mm256_permute2f128_ps(_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd), 0x20);
}
__m256 second_of(__m256 even, __m256 odd) {
  return _mm256_permute2f128_ps(_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd), 0x31);
}

__m256 exact_quotient(__m256 a, __m256 b) {
  return _mm256_div_ps(a, b);
}
__m256 exact_root(__m256 x) {
  return _mm256_sqrt_ps(x);
}

#include "cpu_adam/largest_x86.inl"

#include "cpu_adam/lane_xsimd.inl"

#include "cpu_adam/adam_kernel.inl"

}  // namespace

const Kernels adam_kernels_x86_64_v3 = all_kernels;

}  // namespace penstock::cpu_adam::detail
