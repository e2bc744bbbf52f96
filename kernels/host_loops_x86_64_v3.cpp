#include "kernels/host_loops.hpp"
#include "kernels/lane.hpp"

#include <immintrin.h>

// Compiled with -march=x86-64-v3: AVX2, FMA and F16C.
namespace penstock::kernels {

namespace {

struct Lane {
  struct F {
    __m256 x;
    explicit F(float same) : x(_mm256_set1_ps(same)) {}
    explicit F(__m256 these) : x(these) {}
    friend F operator+(F a, F b) { return F(_mm256_add_ps(a.x, b.x)); }
    friend F operator*(F a, F b) { return F(_mm256_mul_ps(a.x, b.x)); }
  };
  static constexpr unsigned long size = 8;

  static F load(const float* from) { return F(_mm256_loadu_ps(from)); }
  static F load(const Bf16* from) {
    return F(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words(from)), 16)));
  }
  static F load(const Fp16* from) { return F(_mm256_cvtph_ps(words(from))); }

  static void store(float* to, F value) { _mm256_storeu_ps(to, value.x); }
  static void store(Bf16* to, F value) {
    const __m256i bits = _mm256_castps_si256(value.x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value.x, value.x, _CMP_UNORD_Q));
    const __m256i uppers = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    put(to, _mm_packus_epi32(_mm256_castsi256_si128(uppers), _mm256_extracti128_si256(uppers, 1)));
  }
  static void store(Fp16* to, F value) { put(to, _mm256_cvtps_ph(value.x, _MM_FROUND_TO_NEAREST_INT)); }

 private:
  static __m128i words(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
  static void put(void* to, __m128i words) { _mm_storeu_si128(static_cast<__m128i*>(to), words); }
};

// The square of an fp32 number is exact in double, so a fused multiply-add changes no bit.
template <class T>
struct Squares {
  static constexpr unsigned long step = 16;
  __m256d quarters[4];

  void add(const T* from) {
    for (int half = 0; half < 2; ++half) {
      const __m256 values = Lane::load(from + 8 * half).x;
      const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(values));
      const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1));
      quarters[2 * half] = _mm256_fmadd_pd(low, low, quarters[2 * half]);
      quarters[2 * half + 1] = _mm256_fmadd_pd(high, high, quarters[2 * half + 1]);
    }
  }
  void store(double* to) const {
    for (int i = 0; i < 4; ++i) _mm256_storeu_pd(to + 4 * i, quarters[i]);
  }
};

#include "kernels/host_loops.inl"

}  // namespace

const HostLoops host_loops_x86_64_v3 = all_loops;

}  // namespace penstock::kernels
