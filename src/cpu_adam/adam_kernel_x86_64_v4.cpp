#include "cpu_adam/adam_kernel.hpp"
#include "kernels/adam_formula.hpp"
#include "kernels/state_codes.hpp"

#include <immintrin.h>
#include <xsimd/xsimd.hpp>

// Compiled with -march=x86-64-v4: AVX-512 F, BW, CD, DQ, VL. FMA is there and must not be used.
namespace penstock::detail {

namespace {

using Arch = xsimd::avx512bw;

__m512i widened_u16(const void* from) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
}
void narrow_u16(void* to, __m512i x) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtepi32_epi16(x));
}
__m512i widened_u8(const void* from) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}
void narrow_u8(void* to, __m512i x) {
  _mm_storeu_si128(static_cast<__m128i*>(to), _mm512_cvtepi32_epi8(x));
}
__m512 widened_half(const void* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
}
void narrow_half(void* to, __m512 x) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

__m512 exact_quotient(__m512 a, __m512 b) {
  return _mm512_div_ps(a, b);
}
__m512 exact_root(__m512 x) {
  return _mm512_sqrt_ps(x);
}

#include "cpu_adam/lane_xsimd.inl"

#include "cpu_adam/adam_kernel.inl"

}  // namespace

const AdamKernels adam_kernels_x86_64_v4 = all_kernels;

}  // namespace penstock::detail
