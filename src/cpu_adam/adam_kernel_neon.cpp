#include "cpu_adam/adam_kernel.hpp"
#include "kernels/adam_formula.hpp"
#include "kernels/one_moment_formulas.hpp"
#include "kernels/q8_bound.hpp"
#include "kernels/state_codes.hpp"

#include <arm_neon.h>
#include <xsimd/xsimd.hpp>

// AArch64: every such processor has these instructions.
namespace penstock::cpu_adam::detail {

namespace {

using Arch = xsimd::neon64;

uint32x4_t upper_from(const kernels::U16* from) {
  return vshll_n_u16(vld1_u16(from), 16);
}
uint16x4_t upper_of(uint32x4_t x) {
  return vshrn_n_u32(x, 16);
}
float32x4_t half_from(const kernels::Fp16* from) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits)));
}
uint16x4_t half_of(float32x4_t x) {
  return vreinterpret_u16_f16(vcvt_f16_f32(x));
}
void put(kernels::U16* to, uint16x4_t words) {
  vst1_u16(to, words);
}
// NEON has no intrinsic for non-temporal stores; processors detect writes of whole cache lines themselves.
void put_nontemporal(kernels::U16* to, uint16x4_t words) {
  put(to, words);
}
void put_nontemporal(float* to, float32x4_t x) {
  vst1q_f32(to, x);
}
void fence() {}
uint16x8_t nibbles_from(const kernels::U8* from) {
  const uint8x8_t bytes = vcreate_u8(kernels::read_as<kernels::U32>(from));
  const uint32x4_t x = vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
  return vreinterpretq_u16_u32(vandq_u32(vorrq_u32(x, vshlq_n_u32(x, 12)), vdupq_n_u32(0x000f000fu)));
}
void nibbles_to(kernels::U8* to, uint16x8_t nibbles) {
  const uint32x4_t x = vreinterpretq_u32_u16(nibbles);
  const uint16x4_t low = vmovn_u32(vorrq_u32(x, vshrq_n_u32(x, 12)));
  const kernels::U32 bytes = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(low, low))), 0);
  __builtin_memcpy(to, &bytes, sizeof bytes);
}
uint32x4_t lower_halves(uint32x4_t below, uint32x4_t above) {
  return vreinterpretq_u32_u16(vtrn1q_u16(vreinterpretq_u16_u32(below), vreinterpretq_u16_u32(above)));
}
uint32x4_t upper_halves(uint32x4_t below, uint32x4_t above) {
  return vreinterpretq_u32_u16(vtrn2q_u16(vreinterpretq_u16_u32(below), vreinterpretq_u16_u32(above)));
}
float32x4_t even_of(float32x4_t first, float32x4_t second) {
  return vuzp1q_f32(first, second);
}
float32x4_t odd_of(float32x4_t first, float32x4_t second) {
  return vuzp2q_f32(first, second);
}

float32x4_t first_of(float32x4_t even, float32x4_t odd) {
  return vzip1q_f32(even, odd);
}
float32x4_t second_of(float32x4_t even, float32x4_t odd) {
  return vzip2q_f32(even, odd);
}

kernels::U32 largest_of_words(uint16x8_t x) {
  return vmaxvq_u16(x);
}
kernels::U32 largest_of_numbers(uint32x4_t x) {
  return vmaxvq_u32(x);
}

// xsimd 8.1 computes these with Newton iterations from an estimate, which is not correctly rounded.
float32x4_t exact_quotient(float32x4_t a, float32x4_t b) {
  return vdivq_f32(a, b);
}
float32x4_t exact_root(float32x4_t x) {
  return vsqrtq_f32(x);
}

#include "cpu_adam/lane_xsimd.inl"

#include "cpu_adam/adam_kernel.inl"

}  // namespace

const Kernels adam_kernels_neon = all_kernels;

}  // namespace penstock::cpu_adam::detail
