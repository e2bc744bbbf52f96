// A Lane (see kernels/lane.hpp) of xsimd batches. Included by each adam_kernel_<isa>.cpp inside an anonymous
// namespace, after defining there:
//   Arch                                    xsimd's name of the instruction set
//   widened_u16, widened_u8                 (const void*) → batch of 32-bit integers
//   narrow_u16, narrow_u8                   (void*, batch of 32-bit integers): their low bits
//   widened_half, narrow_half               fp16, by the machine's rounding to nearest even
//   exact_quotient, exact_root              of batches, correctly rounded

struct WideLane {
  using F = xsimd::batch<float, Arch>;
  using U = xsimd::batch<kernels::U32, Arch>;
  using I = xsimd::batch<int, Arch>;
  static constexpr unsigned long size = F::size;

  static U bits_of(F x) { return xsimd::bitwise_cast<U>(x); }
  static F value_of(U bits) { return xsimd::bitwise_cast<F>(bits); }
  static F quotient(F a, F b) { return exact_quotient(a, b); }
  static F root(F x) { return exact_root(x); }
  static U larger(U a, U b) { return unsigned_of(xsimd::max(signed_of(a), signed_of(b))); }
  static U shifted_right_signed(U x, int bits) { return unsigned_of(signed_of(x) >> bits); }
  static kernels::U32 largest(U x) {
    alignas(64) kernels::U32 lanes[size];
    x.store_aligned(lanes);
    kernels::U32 most = 0;
    for (const kernels::U32 lane : lanes) most = lane > most ? lane : most;
    return most;
  }
  static bool is_zero(F x) { return xsimd::all(x == F(0.0f)); }
  template <kernels::U32 step>
  static U multiples() {
    alignas(64) static constexpr kernels::U32 numbers[16] = {
        0,        step,     2 * step,  3 * step,  4 * step,  5 * step,  6 * step,  7 * step,
        8 * step, 9 * step, 10 * step, 11 * step, 12 * step, 13 * step, 14 * step, 15 * step};
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
    narrow_u16(to, bits_of(xsimd::select(x != x, value_of(upper | U(0x40u)), value_of(rounded))));
  }
  static F load(const kernels::Fp16* from) { return F(widened_half(from)); }
  static void store(kernels::Fp16* to, F x) { narrow_half(to, x); }

 private:
  static I signed_of(U x) { return xsimd::bitwise_cast<I>(x); }
  static U unsigned_of(I x) { return xsimd::bitwise_cast<U>(x); }
};
