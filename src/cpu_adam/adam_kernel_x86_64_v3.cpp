#include "cpu_adam/adam_kernel.hpp"
#include "kernels/adam_formula.hpp"
#include "kernels/state_codes.hpp"

#include <immintrin.h>
#include <xsimd/xsimd.hpp>

// Compiled with -march=x86-64-v3: AVX2 and F16C. FMA is there and must not be used.
namespace penstock::detail {

namespace {

using Arch = xsimd::avx2;

__m256i widened_u16(const void* from) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}
/// Saturates, so that the upper bits must go first.
__m128i low_u16(__m256i x) {
  const __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
  return _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
}
void narrow_u16(void* to, __m256i x) {
  _mm_storeu_si128(static_cast<__m128i*>(to), low_u16(x));
}
__m256i widened_u8(const void* from) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from)));
}
void narrow_u8(void* to, __m256i x) {
  const __m128i low = _mm_and_si128(low_u16(x), _mm_set1_epi16(0xff));
  _mm_storel_epi64(static_cast<__m128i*>(to), _mm_packus_epi16(low, low));
}
__m256 widened_half(const void* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}
void narrow_half(void* to, __m256 x) {
  _mm_storeu_si128(static_cast<__m128i*>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

__m256 exact_quotient(__m256 a, __m256 b) {
  return _mm256_div_ps(a, b);
}
__m256 exact_root(__m256 x) {
  return _mm256_sqrt_ps(x);
}

#include "cpu_adam/lane_xsimd.inl"

#include "cpu_adam/adam_kernel.inl"

}  // namespace

const AdamKernels adam_kernels_x86_64_v3 = all_kernels;

}  // namespace penstock::detail
