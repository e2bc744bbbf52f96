#include "kit/ptx_instructions.hpp"

#include "kit/ptx_warp.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>
#include <string_view>

namespace penstock::test::ptx {

namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

template <class T, auto function>
void unary(Thread& t, const Operands& o) {
  t.set(o[0], function(t.get<T>(o[1])));
}
template <class T, auto function>
void binary(Thread& t, const Operands& o) {
  t.set(o[0], static_cast<T>(function(t.get<T>(o[1]), t.get<T>(o[2]))));
}
template <class T, auto compare>
void setp(Thread& t, const Operands& o) {
  t.set(o[0], u64{compare(t.get<T>(o[1]), t.get<T>(o[2]))});
}
template <class T>
void copy(Thread& t, const Operands& o) {
  t.set(o[0], t.get<T>(o[1]));
}
template <class T>
void select(Thread& t, const Operands& o) {
  t.set(o[0], t.get<T>(o[t.get<u64>(o[3]) != 0 ? 1 : 2]));
}
template <class T>
void load(Thread& t, const Operands& o) {
  T value;
  std::memcpy(&value, t.global(o[1], sizeof value), sizeof value);
  t.set(o[0], value);
}
template <class T>
void load_parameter(Thread& t, const Operands& o) {
  T value;
  std::memcpy(&value, t.parameter(o[1]), sizeof value);
  t.set(o[0], value);
}
template <class T>
void store(Thread& t, const Operands& o) {
  const T value = t.get<T>(o[1]);
  std::memcpy(t.global(o[0], sizeof value), &value, sizeof value);
}
template <class T>
void load_shared(Thread& t, const Operands& o) {
  T value;
  std::memcpy(&value, t.shared_read(o[1], sizeof value), sizeof value);
  t.set(o[0], value);
}
template <class T>
void store_shared(Thread& t, const Operands& o) {
  const T value = t.get<T>(o[1]);
  std::memcpy(t.shared_write(o[0], sizeof value), &value, sizeof value);
}
template <class T, std::size_t count>
void store_shared_vector(Thread& t, const Operands& o) {
  std::byte* const to = t.shared_write(o[0], count * sizeof(T));
  for (std::size_t i = 0; i < count; ++i) {
    const T value = t.get<T>(o[1 + i]);
    std::memcpy(to + i * sizeof value, &value, sizeof value);
  }
}
template <class T, std::size_t count>
void load_parameter_vector(Thread& t, const Operands& o) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, t.parameter(o[count]) + i * sizeof value, sizeof value);
    t.set(o[i], value);
  }
}
template <class T, std::size_t count>
void load_vector(Thread& t, const Operands& o) {
  T values[count];
  std::memcpy(values, t.global(o[count], sizeof values), sizeof values);
  for (std::size_t i = 0; i < count; ++i) t.set(o[i], values[i]);
}
template <class T, std::size_t count>
void store_vector(Thread& t, const Operands& o) {
  T values[count];
  for (std::size_t i = 0; i < count; ++i) values[i] = t.get<T>(o[1 + i]);
  std::memcpy(t.global(o[0], sizeof values), values, sizeof values);
}
void unpack(Thread& t, const Operands& o) {
  const u64 both = t.get<u64>(o[2]);
  t.set(o[0], static_cast<u32>(both));
  t.set(o[1], static_cast<u32>(both >> 32));
}
void pack(Thread& t, const Operands& o) {
  t.set(o[0], u64{t.get<u32>(o[2])} << 32 | t.get<u32>(o[1]));
}
void unpack_halves(Thread& t, const Operands& o) {
  const u32 both = t.get<u32>(o[2]);
  t.set(o[0], static_cast<u16>(both));
  t.set(o[1], static_cast<u16>(both >> 16));
}
void pack_halves(Thread& t, const Operands& o) {
  t.set(o[0], u32{t.get<u16>(o[2])} << 16 | t.get<u16>(o[1]));
}
void branch(Thread& t, const Operands& o) {
  t.next = o[0].number;
}
void end(Thread& t, const Operands&) {
  t.next = static_cast<std::size_t>(-1);
}
void atomic_min(Thread& t, const Operands& o) {
  u64 before = 0;
  std::byte* const address = t.global(o[1], sizeof before);
  std::memcpy(&before, address, sizeof before);
  const u64 least = std::min(before, t.get<u64>(o[2]));
  std::memcpy(address, &least, sizeof least);
  t.set(o[0], before);
}
/// Four of the eight bytes of two registers.
void permute(Thread& t, const Operands& o) {
  const u64 bytes = u64{t.get<u32>(o[2])} << 32 | t.get<u32>(o[1]);
  const u32 selectors = t.get<u32>(o[3]);
  u32 result = 0;
  for (u32 i = 0; i < 4; ++i) {
    const u32 selector = selectors >> 4 * i & 0xf, byte = bytes >> 8 * (selector & 7) & 0xff;
    result |= ((selector & 8) == 0 ? byte : (byte & 0x80) != 0 ? 0xffu : 0u) << 8 * i;
  }
  t.set(o[0], result);
}

template <class T>
constexpr auto shift_left = [](T a, T b) { return b < 8 * sizeof(T) ? a << b : T{}; };
template <class T>
constexpr auto shift_right = [](T a, T b) { return b < 8 * sizeof(T) ? a >> b : T{}; };
// A predicate is 0 or 1.
constexpr auto is_true = [](u64 a) { return u64{a != 0}; };
constexpr auto is_false = [](u64 a) { return u64{a == 0}; };
template <class From, class To>
constexpr auto convert = [](From a) { return static_cast<To>(a); };
template <class T>
constexpr auto least = [](T a, T b) { return std::min(a, b); };
template <class T>
constexpr auto most = [](T a, T b) { return std::max(a, b); };
template <auto function>
constexpr auto each_half = [](u32 a, u32 b) {
  const auto halves = [](u16 upper, u16 lower) { return u32{upper} << 16 | lower; };
  return halves(function(static_cast<u16>(a >> 16), static_cast<u16>(b >> 16)),
                function(static_cast<u16>(a), static_cast<u16>(b)));
};

/// The amount of a shift is 32 bits long whatever it shifts.
template <class T, auto function>
void shift(Thread& t, const Operands& o) {
  t.set(o[0], static_cast<T>(function(t.get<T>(o[1]), static_cast<T>(t.get<u32>(o[2])))));
}
template <class From, class To>
void multiply_wide(Thread& t, const Operands& o) {
  t.set(o[0], static_cast<To>(To{t.get<From>(o[1])} * To{t.get<From>(o[2])}));
}

void multiply_add(Thread& t, const Operands& o) {
  t.set(o[0], t.get<u32>(o[1]) * t.get<u32>(o[2]) + t.get<u32>(o[3]));
}
/// Replaces a field of bits.
template <class T>
void insert_bits(Thread& t, const Operands& o) {
  constexpr u32 bits = 8 * sizeof(T);
  const u32 begin = t.get<u32>(o[3]) & 0xff, length = t.get<u32>(o[4]) & 0xff;
  const T ones = length < bits ? static_cast<T>((T{1} << length) - 1) : ~T{};
  const auto moved = [&](T x) { return begin < bits ? static_cast<T>(x << begin) : T{}; };
  t.set(o[0], static_cast<T>((moved(t.get<T>(o[1])) & moved(ones)) | (t.get<T>(o[2]) & ~moved(ones))));
}

void check_members(std::span<const Thread> warp, const Operand& mask) {
  for (const Thread& thread : warp) {
    if (std::popcount(thread.get<u32>(mask)) < static_cast<int>(warp.size())) {
      throw std::runtime_error("PTX: only a part of a warp is to take part in an instruction");
    }
  }
}
/// Each thread gets the value of the thread a given number of lanes above, within its segment.
void shuffle_down(std::span<Thread> warp, const Operands& o) {
  check_members(warp, o[5]);
  std::vector<u32> values;
  for (const Thread& thread : warp) values.push_back(thread.get<u32>(o[2]));
  for (std::size_t lane = 0; lane < warp.size(); ++lane) {
    const u32 control = warp[lane].get<u32>(o[4]), segment = control >> 8 & 0x1f;
    const std::size_t last = (lane & segment) | (control & 0x1f & ~segment);
    const std::size_t other = lane + warp[lane].get<u32>(o[3]);
    warp[lane].set(o[0], values.at(other <= last ? other : lane));
    warp[lane].set(o[1], u64{other <= last});
  }
}
void largest_of_warp(std::span<Thread> warp, const Operands& o) {
  check_members(warp, o[2]);
  u32 largest = 0;
  for (const Thread& thread : warp) largest = std::max(largest, thread.get<u32>(o[1]));
  for (Thread& thread : warp) thread.set(o[0], largest);
}
void meet(std::span<Thread> warp, const Operands& o) {
  check_members(warp, o[0]);
  warp.front().shared->pass_warp_barrier(warp.front().number);
}

/// A signed value fills a register of any width.
void load_parameter_s8(Thread& t, const Operands& o) {
  std::int8_t value = 0;
  std::memcpy(&value, t.parameter(o[1]), sizeof value);
  t.set(o[0], std::int64_t{value});
}

/// With one NaN, the other value.
constexpr auto maximum = [](float a, float b) { return std::fmax(a, b); };
constexpr auto minimum = [](float a, float b) { return std::fmin(a, b); };
/// Into [0, 1]; 0 for NaN.
constexpr auto saturate = [](float a) { return std::fmin(std::fmax(a, 0.0f), 1.0f); };
constexpr auto reciprocal = [](float a) { return 1.0f / a; };
/// Subnormal operands and results become 0.
constexpr auto flush = [](float a) {
  return std::fpclassify(a) == FP_SUBNORMAL ? std::copysign(0.0f, a) : a;
};
constexpr auto power_of_two = [](float a) { return static_cast<float>(std::exp2(static_cast<double>(a))); };
constexpr auto power_of_two_flushed = [](float a) { return flush(power_of_two(flush(a))); };

template <class T>
void fused(Thread& t, const Operands& o) {
  t.set(o[0], std::fma(t.get<T>(o[1]), t.get<T>(o[2]), t.get<T>(o[3])));
}
/// Rounded down. The product is exact in double, and so is `low`, what rounding the sum to double left out.
void fused_down(Thread& t, const Operands& o) {
  const double product = double{t.get<float>(o[1])} * double{t.get<float>(o[2])}, addend = t.get<float>(o[3]);
  const double sum = product + addend, part = sum - product;
  const double low = (product - (sum - part)) + (addend - part);
  const auto nearest = static_cast<float>(sum);
  const bool above = double{nearest} > sum || (double{nearest} == sum && low < 0);
  t.set(o[0], above ? std::nextafter(nearest, -std::numeric_limits<float>::infinity()) : nearest);
}
/// To nearest even; a NaN becomes the one of PTX.
u16 rounded_to_bf16(u32 bits) {
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return static_cast<u16>(is_nan ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
void round_to_bf16(Thread& t, const Operands& o) {
  t.set(o[0], rounded_to_bf16(t.get<u32>(o[1])));
}
/// The first source becomes the upper half.
void round_pair_to_bf16(Thread& t, const Operands& o) {
  t.set(o[0], u32{rounded_to_bf16(t.get<u32>(o[1]))} << 16 | rounded_to_bf16(t.get<u32>(o[2])));
}

// Of Arithmetic::approximate alone.
const std::map<std::string_view, Operation> approximate_operations = {
    {"add.f32", {binary<float, std::plus<>{}>, 3}},
    {"cvt.sat.f32.f32", {unary<float, saturate>, 2}},
    {"cvt.rn.bf16x2.f32", {round_pair_to_bf16, 3}},
    {"ex2.approx.f32", {unary<float, power_of_two>, 2}},
    {"ex2.approx.ftz.f32", {unary<float, power_of_two_flushed>, 2}},
    {"fma.rm.f32", {fused_down, 4}},
    {"fma.rn.f32", {fused<float>, 4}},
    {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {} ,{}",
     {nullptr, 14, Group::warp, multiply_matrices}},
    {"mul.f32", {binary<float, std::multiplies<>{}>, 3}},
    {"sub.f32", {binary<float, std::minus<>{}>, 3}},
};

const std::map<std::string_view, Operation> operations = {
    {"add.rn.f32", {binary<float, std::plus<>{}>, 3}},
    {"add.rn.f64", {binary<double, std::plus<>{}>, 3}},
    {"add.s16", {binary<u16, std::plus<>{}>, 3}},
    {"add.s32", {binary<u32, std::plus<>{}>, 3}},
    {"add.s64", {binary<u64, std::plus<>{}>, 3}},
    {"and.b16", {binary<u16, std::bit_and<>{}>, 3}},
    {"and.b32", {binary<u32, std::bit_and<>{}>, 3}},
    {"and.b64", {binary<u64, std::bit_and<>{}>, 3}},
    {"and.pred", {binary<u64, std::bit_and<>{}>, 3}},
    {"atom.global.min.u64", {atomic_min, 3}},
    {"bar.sync", {nullptr, 1, Group::block}},
    {"bar.warp.sync", {nullptr, 1, Group::warp, meet}},
    {"bfi.b32", {insert_bits<u32>, 5}},
    {"bfi.b64", {insert_bits<u64>, 5}},
    {"bra", {branch, 1}},
    {"bra.uni", {branch, 1}},
    {"cvt.f64.f32", {unary<float, convert<float, double>>, 2}},
    {"cvt.rn.bf16.f32", {round_to_bf16, 2}},
    {"cvt.rn.f32.s32", {unary<std::int32_t, convert<std::int32_t, float>>, 2}},
    {"cvt.rn.f32.u16", {unary<u16, convert<u16, float>>, 2}},
    {"cvt.rn.f32.u32", {unary<u32, convert<u32, float>>, 2}},
    {"cvt.u16.u32", {unary<u32, convert<u32, u16>>, 2}},
    {"cvt.u32.u16", {unary<u16, convert<u16, u32>>, 2}},
    {"cvt.u32.u64", {unary<u64, convert<u64, u32>>, 2}},
    {"cvt.u64.u16", {unary<u16, convert<u16, u64>>, 2}},
    {"cvt.u64.u32", {unary<u32, convert<u32, u64>>, 2}},
    {"cvta.to.global.u64", {copy<u64>, 2}},
    {"div.rn.f32", {binary<float, std::divides<>{}>, 3}},
    {"div.u32", {binary<u32, std::divides<>{}>, 3}},
    {"div.u64", {binary<u64, std::divides<>{}>, 3}},
    {"fma.rn.f64", {fused<double>, 4}},  // only asked for by name: the compiler makes none (-fmad=false)
    {"ld.global.f32", {load<float>, 2}},
    {"ld.global.u16", {load<u16>, 2}},
    {"ld.global.u32", {load<u32>, 2}},
    {"ld.global.u8", {load<u8>, 2}},
    {"ld.global.v2.u32 {}", {load_vector<u32, 2>, 3}},
    {"ld.global.v4.f32 {}", {load_vector<float, 4>, 5}},
    {"ld.global.v4.u32 {}", {load_vector<u32, 4>, 5}},
    {"ld.param.f32", {load_parameter<float>, 2}},
    {"ld.param.s8", {load_parameter_s8, 2}},
    {"ld.param.u32", {load_parameter<u32>, 2}},
    {"ld.param.u64", {load_parameter<u64>, 2}},
    {"ld.param.u8", {load_parameter<u8>, 2}},
    {"ld.param.v4.u8 {}", {load_parameter_vector<u8, 4>, 5}},
    {"ld.shared.f32", {load_shared<float>, 2}},
    {"ld.shared.u16", {load_shared<u16>, 2}},
    {"ld.shared.u32", {load_shared<u32>, 2}},
    {"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {}", {nullptr, 5, Group::warp, load_matrices}},
    {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {}",
     {nullptr, 5, Group::warp, load_matrices_transposed}},
    {"mad.lo.s32", {multiply_add, 4}},
    {"max.f32", {binary<float, maximum>, 3}},
    {"max.u16x2", {binary<u32, each_half<most<u16>>>, 3}},
    {"max.u32", {binary<u32, most<u32>>, 3}},
    {"max.u64", {binary<u64, most<u64>>, 3}},
    {"min.f32", {binary<float, minimum>, 3}},
    {"min.s32", {binary<std::int32_t, least<std::int32_t>>, 3}},
    {"min.u16x2", {binary<u32, each_half<least<u16>>>, 3}},
    {"min.u32", {binary<u32, least<u32>>, 3}},
    {"min.u64", {binary<u64, least<u64>>, 3}},
    {"mov.b32", {copy<u32>, 2}},
    {"mov.b32 ,{}", {pack_halves, 3}},
    {"mov.b32 {}", {unpack_halves, 3}},
    {"mov.b64", {copy<u64>, 2}},
    {"mov.b64 ,{}", {pack, 3}},
    {"mov.b64 {}", {unpack, 3}},
    {"mov.f32", {copy<u32>, 2}},
    {"mov.f64", {copy<u64>, 2}},
    {"mov.pred", {unary<u64, is_true>, 2}},
    {"mov.u16", {copy<u16>, 2}},
    {"mov.u32", {copy<u32>, 2}},
    {"mov.u64", {copy<u64>, 2}},
    {"mul.lo.s16", {binary<u16, std::multiplies<>{}>, 3}},
    {"mul.lo.s32", {binary<u32, std::multiplies<>{}>, 3}},
    {"mul.lo.s64", {binary<u64, std::multiplies<>{}>, 3}},
    {"mul.rn.f32", {binary<float, std::multiplies<>{}>, 3}},
    {"mul.rn.f64", {binary<double, std::multiplies<>{}>, 3}},
    {"mul.wide.u16", {multiply_wide<u16, u32>, 3}},
    {"mul.wide.u32", {multiply_wide<u32, u64>, 3}},
    {"neg.f32", {unary<float, std::negate<>{}>, 2}},
    {"neg.s64", {unary<u64, std::negate<>{}>, 2}},
    {"not.b32", {unary<u32, std::bit_not<>{}>, 2}},
    {"not.b64", {unary<u64, std::bit_not<>{}>, 2}},
    {"not.pred", {unary<u64, is_false>, 2}},
    {"or.b16", {binary<u16, std::bit_or<>{}>, 3}},
    {"or.b32", {binary<u32, std::bit_or<>{}>, 3}},
    {"or.b64", {binary<u64, std::bit_or<>{}>, 3}},
    {"or.pred", {binary<u64, std::bit_or<>{}>, 3}},
    {"prmt.b32", {permute, 4}},
    {"rcp.rn.f32", {unary<float, reciprocal>, 2}},
    {"redux.sync.max.u32", {nullptr, 3, Group::warp, largest_of_warp}},
    {"rem.u32", {binary<u32, std::modulus<>{}>, 3}},
    {"rem.u64", {binary<u64, std::modulus<>{}>, 3}},
    {"ret", {end, 0}},
    {"selp.b32", {select<u32>, 4}},
    {"selp.f32", {select<float>, 4}},
    {"selp.u16", {select<u16>, 4}},
    {"setp.eq.b32", {setp<u32, std::equal_to<>{}>, 3}},
    {"setp.eq.f32", {setp<float, std::equal_to<>{}>, 3}},
    {"setp.eq.s16", {setp<u16, std::equal_to<>{}>, 3}},
    {"setp.eq.s32", {setp<u32, std::equal_to<>{}>, 3}},
    {"setp.eq.s64", {setp<u64, std::equal_to<>{}>, 3}},
    {"setp.ge.u32", {setp<u32, std::greater_equal<>{}>, 3}},
    {"setp.ge.u64", {setp<u64, std::greater_equal<>{}>, 3}},
    {"setp.gt.u16", {setp<u16, std::greater<>{}>, 3}},
    {"setp.gt.u32", {setp<u32, std::greater<>{}>, 3}},
    {"setp.gt.u64", {setp<u64, std::greater<>{}>, 3}},
    {"setp.le.u32", {setp<u32, std::less_equal<>{}>, 3}},
    {"setp.le.u64", {setp<u64, std::less_equal<>{}>, 3}},
    {"setp.lt.f32", {setp<float, std::less<>{}>, 3}},
    {"setp.lt.u16", {setp<u16, std::less<>{}>, 3}},
    {"setp.lt.u32", {setp<u32, std::less<>{}>, 3}},
    {"setp.lt.u64", {setp<u64, std::less<>{}>, 3}},
    {"setp.ne.s16", {setp<u16, std::not_equal_to<>{}>, 3}},
    {"setp.ne.s32", {setp<u32, std::not_equal_to<>{}>, 3}},
    {"setp.ne.s64", {setp<u64, std::not_equal_to<>{}>, 3}},
    {"shfl.sync.bfly.b32", {nullptr, 6, Group::warp, shuffle_butterfly}},
    {"shfl.sync.down.b32", {nullptr, 6, Group::warp, shuffle_down}},
    {"shl.b16", {shift<u16, shift_left<u16>>, 3}},
    {"shl.b32", {shift<u32, shift_left<u32>>, 3}},
    {"shl.b64", {shift<u64, shift_left<u64>>, 3}},
    {"shr.u16", {shift<u16, shift_right<u16>>, 3}},
    {"shr.u32", {shift<u32, shift_right<u32>>, 3}},
    {"shr.u64", {shift<u64, shift_right<u64>>, 3}},
    {"sqrt.rn.f32", {unary<float, [](float x) { return std::sqrt(x); }>, 2}},
    {"st.global.f32", {store<float>, 2}},
    {"st.global.f64", {store<double>, 2}},
    {"st.global.u16", {store<u16>, 2}},
    {"st.global.u32", {store<u32>, 2}},
    {"st.global.u8", {store<u8>, 2}},
    {"st.global.v2.u32 ,{}", {store_vector<u32, 2>, 3}},
    {"st.global.v4.u32 ,{}", {store_vector<u32, 4>, 5}},
    {"st.shared.f32", {store_shared<float>, 2}},
    {"st.shared.u32", {store_shared<u32>, 2}},
    {"st.shared.v4.u32 ,{}", {store_shared_vector<u32, 4>, 5}},
    {"sub.s16", {binary<u16, std::minus<>{}>, 3}},
    {"sub.s32", {binary<u32, std::minus<>{}>, 3}},
    {"sub.s64", {binary<u64, std::minus<>{}>, 3}},
    {"xor.b64", {binary<u64, std::bit_xor<>{}>, 3}},
    {"xor.pred", {binary<u64, std::bit_xor<>{}>, 3}},
};

}  // namespace

const Operation& operation(const std::string& name, Arithmetic arithmetic) {
  if (const auto found = operations.find(name); found != operations.end()) return found->second;
  if (const auto found = approximate_operations.find(name); found != approximate_operations.end()) {
    if (arithmetic == Arithmetic::approximate) return found->second;
    throw std::runtime_error("PTX: not rounded once to nearest even: " + name);
  }
  throw std::runtime_error("PTX: unknown here: " + name);
}

}  // namespace penstock::test::ptx
