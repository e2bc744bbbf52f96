#include "cpu_adam/adam_kernel.hpp"
#include "kernels/adam_formula.hpp"

#include <smmintrin.h>
#include <xsimd/xsimd.hpp>

// Compiled with -march=x86-64-v2: SSE4.2, no F16C.
namespace penstock::detail {

namespace {

using Batch = xsimd::batch<float, xsimd::sse4_2>;

Batch load(const float* from) {
  return Batch::load_unaligned(from);
}
void store(float* to, Batch x) {
  x.store_unaligned(to);
}

Batch load(const kernels::Bf16* from) {
  const __m128i bits = _mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  return _mm_castsi128_ps(_mm_slli_epi32(bits, 16));
}
void store(kernels::Bf16* to, Batch x) {
  const __m128i bits = _mm_castps_si128(x);
  const __m128i upper = _mm_srli_epi32(bits, 16);
  const __m128i odd = _mm_and_si128(upper, _mm_set1_epi32(1));
  const __m128i rounded = _mm_srli_epi32(_mm_add_epi32(bits, _mm_add_epi32(odd, _mm_set1_epi32(0x7fff))), 16);
  const __m128i quiet = _mm_or_si128(upper, _mm_set1_epi32(0x40));
  const __m128i is_nan = _mm_castps_si128(_mm_cmpunord_ps(x, x));
  const __m128i chosen = _mm_blendv_epi8(rounded, quiet, is_nan);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi32(chosen, chosen));
}

Batch load(const kernels::Fp16* from) {
  return _mm_setr_ps(kernels::widen(from[0]), kernels::widen(from[1]), kernels::widen(from[2]),
                     kernels::widen(from[3]));
}
void store(kernels::Fp16* to, Batch x) {
  float values[4];
  x.store_unaligned(values);
  for (int i = 0; i < 4; ++i) to[i] = kernels::narrow<kernels::Fp16>(values[i]);
}

bool is_zero(Batch x) {
  return xsimd::all(x == Batch(0.0f));
}

#include "cpu_adam/adam_kernel.inl"

}  // namespace

const AdamKernels adam_kernels_x86_64_v2 = all_kernels;

}  // namespace penstock::detail
