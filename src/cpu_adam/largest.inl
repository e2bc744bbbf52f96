// The largest among numbers in memory. Included by adam_kernel.inl.

/// The largest of some numbers, of those bits of them that `mask` has.
template <class Number>
[[gnu::always_inline]] inline U32 largest_masked(const Number* from, unsigned long count, Number mask) {
  if (count == kernels::q8_run) return largest_of_run(from, mask);
  U32 most = 0;
  for (unsigned long i = 0; i < count; ++i) most = ScalarLane::larger(most, static_cast<U32>(from[i] & mask));
  return most;
}

[[gnu::always_inline]] inline float largest_magnitude(const float* from, unsigned long count) {
  return kernels::float_of(largest_masked(reinterpret_cast<const U32*>(from), count, 0x7fffffffu));
}
template <class Half>
[[gnu::always_inline]] inline float largest_magnitude(const Half* from, unsigned long count) {
  const U32 bits = largest_masked(reinterpret_cast<const U16*>(from), count, U16{0x7fff});
  return kernels::widen(Half{static_cast<U16>(bits)});
}
