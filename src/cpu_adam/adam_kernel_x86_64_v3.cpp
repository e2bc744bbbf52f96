#include "cpu_adam/adam_kernel.hpp"
#include "kernels/adam_formula.hpp"

#include <immintrin.h>
#include <xsimd/xsimd.hpp>

// Compiled with -march=x86-64-v3: AVX2 and F16C. FMA is there and must not be used.
namespace penstock::detail {

namespace {

using Batch = xsimd::batch<float, xsimd::avx2>;

Batch load(const float* from) {
  return Batch::load_unaligned(from);
}
void store(float* to, Batch x) {
  x.store_unaligned(to);
}

__m128i load_bits(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}
void store_bits(void* to, __m128i bits) {
  _mm_storeu_si128(static_cast<__m128i*>(to), bits);
}

Batch load(const kernels::Bf16* from) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_bits(from)), 16));
}
void store(kernels::Bf16* to, Batch x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i chosen = _mm256_blendv_epi8(rounded, quiet, is_nan);
  store_bits(to, _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1)));
}

Batch load(const kernels::Fp16* from) {
  return _mm256_cvtph_ps(load_bits(from));
}
void store(kernels::Fp16* to, Batch x) {
  store_bits(to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

bool is_zero(Batch x) {
  return xsimd::all(x == Batch(0.0f));
}

#include "cpu_adam/adam_kernel.inl"

}  // namespace

const AdamKernels adam_kernels_x86_64_v3 = all_kernels;

}  // namespace penstock::detail
