// A Lane (see kernels/state_codes.hpp) of xsimd batches. Included by each adam_kernel_<isa>.cpp inside an anonymous
// namespace, after defining there:
//   Arch                                    xsimd's name of the instruction set
//   widened_u16, widened_u8                 (const void*) → batch of 32-bit integers
//   narrow_u16, narrow_u8                   (void*, batch of 32-bit integers): their low bits
//   widened_half, narrow_half               fp16, by the machine's rounding to nearest even

struct WideLane {
  using F = xsimd::batch<float, Arch>;
  using U = xsimd::batch<kernels::U32, Arch>;
  using I = xsimd::batch<int, Arch>;
  static constexpr unsigned long size = F::size;

  static U bits_of(F x) { return xsimd::bitwise_cast<U>(x); }
  static F value_of(U bits) { return xsimd::bitwise_cast<F>(bits); }
  static F to_float(U n) { return xsimd::to_float(signed_of(n)); }
  static U truncated(F x) { return unsigned_of(xsimd::to_int(x)); }
  static U if_less(U a, U b, U then, U otherwise) {
    return unsigned_of(xsimd::select(signed_of(a) < signed_of(b), signed_of(then), signed_of(otherwise)));
  }
  static U larger(U a, U b) { return unsigned_of(xsimd::max(signed_of(a), signed_of(b))); }
  static kernels::U32 largest(U x) {
    alignas(64) kernels::U32 lanes[size];
    x.store_aligned(lanes);
    kernels::U32 most = 0;
    for (const kernels::U32 lane : lanes) most = lane > most ? lane : most;
    return most;
  }
  static bool is_zero(F x) { return xsimd::all(x == F(0.0f)); }
  static U iota() {
    alignas(64) static constexpr kernels::U32 numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return U::load_aligned(numbers);
  }

  static U load_u16(const kernels::U16* from) { return U(widened_u16(from)); }
  static void store_u16(kernels::U16* to, U x) { narrow_u16(to, x); }
  static U load_u8(const kernels::U8* from) { return U(widened_u8(from)); }
  static void store_u8(kernels::U8* to, U x) { narrow_u8(to, x); }

  static F load(const float* from) { return F::load_unaligned(from); }
  static void store(float* to, F x) { x.store_unaligned(to); }
  static F load(const kernels::Bf16* from) { return value_of(U(widened_u16(from)) << 16); }
  static void store(kernels::Bf16* to, F x) {
    const U bits = bits_of(x), upper = bits >> 16;
    const U rounded = (bits + ((upper & U(1u)) + U(0x7fffu))) >> 16;
    // Ordered as signed integers, magnitudes beyond infinity are NaN.
    const U nan_above = U(0x7f800000u);
    narrow_u16(to, if_less(nan_above, bits & U(0x7fffffffu), upper | U(0x40u), rounded));
  }
  static F load(const kernels::Fp16* from) { return F(widened_half(from)); }
  static void store(kernels::Fp16* to, F x) { narrow_half(to, x); }

 private:
  static I signed_of(U x) { return xsimd::bitwise_cast<I>(x); }
  static U unsigned_of(I x) { return xsimd::bitwise_cast<U>(x); }
};
