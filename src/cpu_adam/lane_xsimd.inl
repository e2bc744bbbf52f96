// Lanes (see kernels/lane.hpp) of xsimd batches. Included by each adam_kernel_<isa>.cpp inside an anonymous
// namespace, after defining there:
//   Arch                                    xsimd's name of the instruction set
//   exact_quotient, exact_root              of batches, correctly rounded
//   upper_from, upper_of                    16-bit integers as the upper halves of 32-bit ones, and back to
//   half_from, half_of                      half a register; fp16 as fp32 and back, rounded to nearest even
//   put, put_nontemporal, fence             store of half a register; the same as a non-temporal store; the fence
//                                           that orders non-temporal stores before later stores
//   nibbles_from, nibbles_to                4-bit integers, two in a byte, as a whole batch of 16-bit ones and back;
//                                           the upper 12 bits of those are zeros
//   lower_halves, upper_halves              of two batches of 32-bit numbers, the second's above the first's
//   even_of, odd_of                         numbers 0, 2, 4, … and 1, 3, 5, … of two batches
//   first_of, second_of                     the inverse: the two batches from their even and odd numbers
//   largest_of_words, _numbers              the largest of a batch of unsigned integers of 16, 32 bits

/// Consecutive elements in one register.
struct WideLane {
  using F = xsimd::batch<float, Arch>;
  using U = xsimd::batch<kernels::U32, Arch>;
  using Operand = F;
  using Mask = U;
  using Most = U;
  static constexpr unsigned long size = F::size;

  static U bits_of(F x) { return xsimd::bitwise_cast<U>(x); }
  static F value_of(U bits) { return xsimd::bitwise_cast<F>(bits); }
  static F quotient(F a, F b) { return exact_quotient(a, b); }
  static F root(F x) { return exact_root(x); }
  static F sign(F x) {
    const F one = value_of((bits_of(x) & U(0x80000000u)) | bits_of(F(1.0f)));
    return xsimd::select((x < F(0.0f)) | (x > F(0.0f)), one, x);
  }
  static Most larger(Most most, U x) { return xsimd::max(most, x); }

  static F load(const float* from) { return F::load_unaligned(from); }
  static void store(float* to, F x) { x.store_unaligned(to); }
  static F load(const kernels::Bf16* from) { return value_of(U(upper_from(&from->bits))); }
  static void store(kernels::Bf16* to, F x) { put(&to->bits, upper_of(bf16_bits(x))); }
  static F load(const kernels::Fp16* from) { return F(half_from(from)); }
  static void store(kernels::Fp16* to, F x) { put(&to->bits, half_of(x)); }

  static void store_nontemporal(float* to, F x) { put_nontemporal(to, x); }
  static void store_nontemporal(kernels::Bf16* to, F x) {
    put_nontemporal(&to->bits, upper_of(bf16_bits(x)));
  }
  static void store_nontemporal(kernels::Fp16* to, F x) { put_nontemporal(&to->bits, half_of(x)); }

 private:
  /// The bf16 numbers in the upper halves, rounded to nearest even. x must be a result of arithmetic, whose NaNs are
  /// quiet: at least 0x7fc00000 without the sign. They stay NaNs: they are first cut to at most 0x7fff0000, so that
  /// adding the rounding increment cannot carry into the sign.
  static U bf16_bits(F x) {
    const U bits = bits_of(x), odd = (bits >> 16) & U(1u);
    const U magnitude = xsimd::min(bits & U(0x7fffffffu), U(0x7fff0000u));
    return (magnitude + (odd + U(0x7fffu))) | (bits & U(0x80000000u));
  }
};

/// Two registers; every operation is applied to both.
template <class Half>
struct Pair {
  Half even, odd;

  template <class Scalar>
  explicit Pair(Scalar same) : even(same), odd(same) {}
  Pair(Half even_ones, Half odd_ones) : even(even_ones), odd(odd_ones) {}
  Pair() = default;

  friend Pair operator+(Pair a, Half b) { return {a.even + b, a.odd + b}; }
  friend Pair operator*(Pair a, Half b) { return {a.even * b, a.odd * b}; }
  friend Pair operator&(Pair a, Half b) { return {a.even & b, a.odd & b}; }
  friend Pair operator|(Pair a, Pair b) { return {a.even | b.even, a.odd | b.odd}; }
  friend Pair operator+(Pair a, Pair b) { return {a.even + b.even, a.odd + b.odd}; }
  friend Pair operator*(Pair a, Pair b) { return {a.even * b.even, a.odd * b.odd}; }
  friend Pair operator>>(Pair a, int bits) { return {a.even >> bits, a.odd >> bits}; }
};

/// Consecutive elements in two registers, the even ones in one and the odd ones in the other. 16-bit integers are
/// then unpacked from 32-bit words with a shift or a mask, without moving data across lanes.
struct PairLane {
  using F = Pair<WideLane::F>;
  using U = Pair<WideLane::U>;
  using W = xsimd::batch<kernels::U16, Arch>;
  using Operand = WideLane::F;
  using Mask = WideLane::U;
  struct Most {
    WideLane::U whole;
    W upper;
    explicit Most(kernels::U32 same) : whole(same), upper(static_cast<kernels::U16>(same >> 16)) {}
  };
  static constexpr unsigned long size = W::size;

  static U bits_of(F x) { return {WideLane::bits_of(x.even), WideLane::bits_of(x.odd)}; }
  static F value_of(U bits) { return {WideLane::value_of(bits.even), WideLane::value_of(bits.odd)}; }
  static F quotient(F a, F b) { return {exact_quotient(a.even, b.even), exact_quotient(a.odd, b.odd)}; }
  static F root(F x) { return {exact_root(x.even), exact_root(x.odd)}; }
  static F sign(F x) { return {WideLane::sign(x.even), WideLane::sign(x.odd)}; }
  static Most larger(Most most, U x) {
    most.whole = xsimd::max(most.whole, xsimd::max(x.even, x.odd));
    return most;
  }
  static Most larger_upper(Most most, W x) {
    most.upper = xsimd::max(most.upper, x);
    return most;
  }
  template <kernels::U32 step>
  static U multiples() {
    alignas(64) static constexpr kernels::U32 even[16] = {
        0,         2 * step,  4 * step,  6 * step,  8 * step,  10 * step, 12 * step, 14 * step,
        16 * step, 18 * step, 20 * step, 22 * step, 24 * step, 26 * step, 28 * step, 30 * step};
    const auto these = WideLane::U::load_aligned(even);
    return {these, these + WideLane::U(step)};
  }

  static F load(const float* from) {
    return paired(WideLane::load(from), WideLane::load(from + WideLane::size));
  }
  static void store(float* to, F x) {
    WideLane::store(to, WideLane::F(first_of(x.even, x.odd)));
    WideLane::store(to + WideLane::size, WideLane::F(second_of(x.even, x.odd)));
  }
  static F load(const kernels::Bf16* from) { return value_of(upper(load_words(&from->bits))); }
  static F load(const kernels::Fp16* from) {
    return paired(WideLane::load(from), WideLane::load(from + WideLane::size));
  }

  static W load_words(const kernels::U16* from) { return W::load_unaligned(from); }
  static void store_words(kernels::U16* to, W x) { x.store_unaligned(to); }
  static W upper_words(U x) { return words(upper_halves(x.even, x.odd)); }
  static W lower_words(U x) { return words(lower_halves(x.even, x.odd)); }
  static U joined(W upper, W lower) {
    return {WideLane::U(lower_halves(pairs(lower), pairs(upper))),
            WideLane::U(upper_halves(pairs(lower), pairs(upper)))};
  }
  static U upper(W x) { return {pairs(x) << 16, pairs(x) & WideLane::U(0xffff0000u)}; }
  static W load_nibbles(const kernels::U8* from, unsigned long i) { return W(nibbles_from(from + i / 2)); }
  static void store_nibbles(kernels::U8* to, unsigned long i, W x) { nibbles_to(to + i / 2, x); }
  static W excess(W a, W b) { return xsimd::ssub(a, b); }
  static W smaller(W a, W b) { return xsimd::min(a, b); }
  static U smaller(U a, Mask b) { return {xsimd::min(a.even, b), xsimd::min(a.odd, b)}; }
  static U larger(U a, U b) { return {xsimd::max(a.even, b.even), xsimd::max(a.odd, b.odd)}; }
  static bool any_equal(W a, kernels::U16 b) { return xsimd::any(a == W(b)); }

 private:
  static F paired(WideLane::F first, WideLane::F second) {
    return {WideLane::F(even_of(first, second)), WideLane::F(odd_of(first, second))};
  }
  static W words(WideLane::U::register_type x) { return xsimd::bitwise_cast<W>(WideLane::U(x)); }
  static WideLane::U pairs(W x) { return xsimd::bitwise_cast<WideLane::U>(x); }
};

inline kernels::U32 largest(WideLane::U x) {
  return largest_of_numbers(x);
}
inline kernels::U32 largest(PairLane::W x) {
  return largest_of_words(x);
}
/// See largest_masked().
template <class Number>
inline kernels::U32 largest_of_run(const kernels::U8* from, Number mask) {
  using Numbers = xsimd::batch<Number, Arch>;
  Numbers most(Number{0});
  for (unsigned i = 0; i < kernels::q8_run; i += Numbers::size) {
    const Numbers some(kernels::read_as<typename Numbers::register_type>(from + sizeof(Number) * i));
    most = xsimd::max(most, some & Numbers(mask));
  }
  return largest(most);
}
inline kernels::U32 largest(PairLane::Most x) {
  const kernels::U32 whole = largest(x.whole), upper = largest(x.upper) << 16;
  return whole < upper ? upper : whole;
}
