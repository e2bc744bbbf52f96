#include "kernels/host_loops.hpp"
#include "kernels/lane.hpp"

#include <immintrin.h>

// Compiled with -march=x86-64-v4: AVX-512 F, BW, CD, DQ, VL.
namespace penstock::kernels {

namespace {

struct Lane {
  struct F {
    __m512 x;
    explicit F(float same) : x(_mm512_set1_ps(same)) {}
    explicit F(__m512 these) : x(these) {}
    friend F operator+(F a, F b) { return F(_mm512_add_ps(a.x, b.x)); }
    friend F operator*(F a, F b) { return F(_mm512_mul_ps(a.x, b.x)); }
  };
  static constexpr unsigned long size = 16;

  static F load(const float* from) { return F(_mm512_loadu_ps(from)); }
  static F load(const Bf16* from) {
    return F(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words(from)), 16)));
  }
  static F load(const Fp16* from) { return F(_mm512_cvtph_ps(words(from))); }

  static void store(float* to, F value) { _mm512_storeu_ps(to, value.x); }
  static void store(Bf16* to, F value) {
    const __m512i bits = _mm512_castps_si512(value.x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(value.x, value.x, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    put(to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(quiet, 16)));
  }
  static void store(Fp16* to, F value) { put(to, _mm512_cvtps_ph(value.x, _MM_FROUND_TO_NEAREST_INT)); }

 private:
  static __m256i words(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
  static void put(void* to, __m256i words) { _mm256_storeu_si256(static_cast<__m256i*>(to), words); }
};

// The square of an fp32 number is exact in double, so a fused multiply-add changes no bit.
__m512d low(__m512 x) {
  return _mm512_cvtps_pd(_mm512_castps512_ps256(x));
}
__m512d high(__m512 x) {
  return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
}

template <class T>
struct Squares {
  static constexpr unsigned long step = 16;
  __m512d first, second;

  void add(const T* from) {
    const __m512 values = Lane::load(from).x;
    first = _mm512_fmadd_pd(low(values), low(values), first);
    second = _mm512_fmadd_pd(high(values), high(values), second);
  }
  void store(double* to) const {
    _mm512_storeu_pd(to, first);
    _mm512_storeu_pd(to + 8, second);
  }
};

/// Keeps even and odd elements in separate sums, because a shift and a mask extract them from their 32-bit words.
template <>
struct Squares<Bf16> {
  static constexpr unsigned long step = 32;
  __m512d evens, odds;

  void add(const Bf16* from) {
    const __m512i words = _mm512_loadu_si512(from);
    const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(~0xffff)));
    evens = _mm512_fmadd_pd(low(even), low(even), evens);
    odds = _mm512_fmadd_pd(low(odd), low(odd), odds);
    evens = _mm512_fmadd_pd(high(even), high(even), evens);
    odds = _mm512_fmadd_pd(high(odd), high(odd), odds);
  }
  void store(double* to) const {
    for (int i = 0; i < 8; ++i) {
      to[2 * i] = evens[i];
      to[2 * i + 1] = odds[i];
    }
  }
};

#include "kernels/host_loops.inl"

}  // namespace

const HostLoops host_loops_x86_64_v4 = all_loops;

}  // namespace penstock::kernels
