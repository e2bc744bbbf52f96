// The largest of numbers in memory, read as unsigned integers whatever their stored type. Included by
// adam_kernel.inl.

/// The largest of `count` numbers after each is masked with `mask`.
template <class Number>
[[gnu::always_inline]] inline U32 largest_masked(const void* from, unsigned long count, Number mask) {
  const U8* const bytes = static_cast<const U8*>(from);
  if (count == kernels::q8_run) return largest_of_run(bytes, mask);
  U32 most = 0;
  for (unsigned long i = 0; i < count; ++i) {
    most = ScalarLane::larger(most, U32{kernels::read_as<Number>(bytes + sizeof(Number) * i)} & mask);
  }
  return most;
}

template <class Gradient>
[[gnu::always_inline]] inline float largest_magnitude(const Gradient* from, unsigned long count) {
  if constexpr (sizeof(Gradient) == sizeof(float)) {
    return kernels::float_of(largest_masked(from, count, U32{0x7fffffff}));
  } else {
    return kernels::widen(Gradient{static_cast<U16>(largest_masked(from, count, U16{0x7fff}))});
  }
}
