// The largest of the 16- or 32-bit numbers in a register. Included by each adam_kernel_x86_64_<level>.cpp
// inside an anonymous namespace: registers of the level's width are reduced to one of 128 bits.

kernels::U32 largest_of_words(__m128i x) {
  // There is an instruction for the smallest only.
  const __m128i smallest = _mm_minpos_epu16(_mm_xor_si128(x, _mm_set1_epi16(-1)));
  return ~static_cast<kernels::U32>(_mm_cvtsi128_si32(smallest)) & 0xffffu;
}
kernels::U32 largest_of_numbers(__m128i x) {
  const __m128i two = _mm_max_epu32(x, _mm_srli_si128(x, 8));
  return static_cast<kernels::U32>(_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_srli_si128(two, 4))));
}

#if defined(__AVX2__)
kernels::U32 largest_of_words(__m256i x) {
  return largest_of_words(_mm_max_epu16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}
kernels::U32 largest_of_numbers(__m256i x) {
  return largest_of_numbers(_mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}
#endif

#if defined(__AVX512BW__)
kernels::U32 largest_of_words(__m512i x) {
  return largest_of_words(_mm256_max_epu16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1)));
}
kernels::U32 largest_of_numbers(__m512i x) {
  return largest_of_numbers(_mm256_max_epu32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1)));
}
#endif
