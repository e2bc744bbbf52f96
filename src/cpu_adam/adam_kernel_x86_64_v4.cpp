#include "cpu_adam/adam_kernel.hpp"
#include "kernels/adam_formula.hpp"
#include "kernels/one_moment_formulas.hpp"
#include "kernels/q8_bound.hpp"
#include "kernels/state_codes.hpp"

#include <immintrin.h>
#include <xsimd/xsimd.hpp>

// Compiled with -march=x86-64-v4: AVX-512 F, BW, CD, DQ, VL. FMA is there and must not be used.
namespace penstock::cpu_adam::detail {

namespace {

using Arch = xsimd::avx512bw;

__m256i words_from(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
__m512i upper_from(const void* from) {
  const __m512i twice = _mm512_setr_epi32(0, 0x00010001, 0x00020002, 0x00030003, 0x00040004, 0x00050005,
                                          0x00060006, 0x00070007, 0x00080008, 0x00090009, 0x000a000a,
                                          0x000b000b, 0x000c000c, 0x000d000d, 0x000e000e, 0x000f000f);
  return _mm512_maskz_permutexvar_epi16(0xaaaaaaaau, twice, _mm512_castsi256_si512(words_from(from)));
}
__m256i upper_of(__m512i x) {
  const __m512i odd = _mm512_setr_epi32(0x00030001, 0x00070005, 0x000b0009, 0x000f000d, 0x00130011,
                                        0x00170015, 0x001b0019, 0x001f001d, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_castsi512_si256(_mm512_permutexvar_epi16(odd, x));
}
__m512 half_from(const void* from) {
  return _mm512_cvtph_ps(words_from(from));
}
__m256i half_of(__m512 x) {
  return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}
void put(void* to, __m256i words) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), words);
}
void put_nontemporal(void* to, __m256i words) {
  _mm256_stream_si256(static_cast<__m256i*>(to), words);
}
void put_nontemporal(float* to, __m512 x) {
  _mm512_stream_ps(to, x);
}
void fence() {
  _mm_sfence();
}
__m512i nibbles_from(const void* from) {
  const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  return _mm512_and_si512(_mm512_or_si512(x, _mm512_slli_epi32(x, 12)), _mm512_set1_epi32(0x000f000f));
}
void nibbles_to(void* to, __m512i x) {
  const __m512i bytes = _mm512_or_si512(x, _mm512_srli_epi32(x, 12));
  _mm_storeu_si128(static_cast<__m128i*>(to), _mm512_cvtepi32_epi8(bytes));
}
// One instruction for a shift and a blend.
__m512i lower_halves(__m512i below, __m512i above) {
  const __m512i up = _mm512_set4_epi32(0x0d0c0000, 0x09080000, 0x05040000, 0x01000000);
  return _mm512_mask_shuffle_epi8(below, 0xccccccccccccccccu, above, up);
}
__m512i upper_halves(__m512i below, __m512i above) {
  const __m512i down = _mm512_set4_epi32(0x00000f0e, 0x00000b0a, 0x00000706, 0x00000302);
  return _mm512_mask_shuffle_epi8(above, 0x3333333333333333u, below, down);
}
__m512 even_of(__m512 first, __m512 second) {
  return _mm512_permutex2var_ps(
      first, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), second);
}
__m512 odd_of(__m512 first, __m512 second) {
  return _mm512_permutex2var_ps(
      first, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), second);
}

__m512 first_of(__m512 even, __m512 odd) {
  return _mm512_permutex2var_ps(
      even, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), odd);
}
__m512 second_of(__m512 even, __m512 odd) {
  return _mm512_permutex2var_ps(
      even, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), odd);
}

__m512 exact_quotient(__m512 a, __m512 b) {
  return _mm512_div_ps(a, b);
}
__m512 exact_root(__m512 x) {
  return _mm512_sqrt_ps(x);
}

#include "cpu_adam/largest_x86.inl"

#include "cpu_adam/lane_xsimd.inl"

#include "cpu_adam/adam_kernel.inl"

}  // namespace

const Kernels adam_kernels_x86_64_v4 = all_kernels;

}  // namespace penstock::cpu_adam::detail
