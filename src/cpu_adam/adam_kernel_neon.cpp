#include "cpu_adam/adam_kernel.hpp"
#include "kernels/adam_formula.hpp"
#include "kernels/state_codes.hpp"

#include <arm_neon.h>
#include <xsimd/xsimd.hpp>

// AArch64, whose every processor has these instructions.
namespace penstock::detail {

namespace {

using Arch = xsimd::neon64;

uint32x4_t widened_u16(const kernels::U16* from) {
  return vmovl_u16(vld1_u16(from));
}
void narrow_u16(kernels::U16* to, uint32x4_t x) {
  vst1_u16(to, vmovn_u32(x));
}
void narrow_u16(kernels::Bf16* to, uint32x4_t x) {
  narrow_u16(&to->bits, x);
}
uint32x4_t widened_u16(const kernels::Bf16* from) {
  return widened_u16(&from->bits);
}
uint32x4_t widened_u8(const kernels::U8* from) {
  kernels::U32 four;
  __builtin_memcpy(&four, from, sizeof four);
  return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}
void narrow_u8(kernels::U8* to, uint32x4_t x) {
  const uint16x4_t half = vmovn_u32(x);
  const kernels::U32 four = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(half, half))), 0);
  __builtin_memcpy(to, &four, sizeof four);
}
float32x4_t widened_half(const kernels::Fp16* from) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits)));
}
void narrow_half(kernels::Fp16* to, float32x4_t x) {
  vst1_u16(&to->bits, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}

// xsimd's own, in version 8.1, are Newton's steps from an estimate.
float32x4_t exact_quotient(float32x4_t a, float32x4_t b) {
  return vdivq_f32(a, b);
}
float32x4_t exact_root(float32x4_t x) {
  return vsqrtq_f32(x);
}

#include "cpu_adam/lane_xsimd.inl"

#include "cpu_adam/adam_kernel.inl"

}  // namespace

const AdamKernels adam_kernels_neon = all_kernels;

}  // namespace penstock::detail
