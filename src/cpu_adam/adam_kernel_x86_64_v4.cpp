#include "cpu_adam/adam_kernel.hpp"
#include "kernels/adam_formula.hpp"

#include <immintrin.h>
#include <xsimd/xsimd.hpp>

// Compiled with -march=x86-64-v4: AVX-512 F, BW, CD, DQ, VL. FMA is there and must not be used.
namespace penstock::detail {

namespace {

using Batch = xsimd::batch<float, xsimd::avx512bw>;

Batch load(const float* from) {
  return Batch::load_unaligned(from);
}
void store(float* to, Batch x) {
  x.store_unaligned(to);
}

__m256i load_bits(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
void store_bits(void* to, __m256i bits) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), bits);
}

Batch load(const kernels::Bf16* from) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_bits(from)), 16));
}
void store(kernels::Bf16* to, Batch x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  store_bits(to,
             _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, is_nan, upper, _mm512_set1_epi32(0x40))));
}

Batch load(const kernels::Fp16* from) {
  return _mm512_cvtph_ps(load_bits(from));
}
void store(kernels::Fp16* to, Batch x) {
  store_bits(to, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

bool is_zero(Batch x) {
  return _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_EQ_OQ) == 0xffff;
}

#include "cpu_adam/adam_kernel.inl"

}  // namespace

const AdamKernels adam_kernels_x86_64_v4 = all_kernels;

}  // namespace penstock::detail
