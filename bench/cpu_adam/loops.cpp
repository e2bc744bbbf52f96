#include "loops.hpp"

#include <bit>
#include <cmath>

namespace penstock::bench {

// Not with sanitizers: they cannot run the ifunc resolvers that select one.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define PENSTOCK_WIDEST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PENSTOCK_WIDEST
#endif

PENSTOCK_WIDEST
void scale_gradient(float* x, std::size_t count, float factor) {
  for (std::size_t i = 0; i < count; ++i) x[i] *= factor;
}

PENSTOCK_WIDEST
void scale_block(float* state, const std::uint16_t* gradient, std::uint16_t* parameter, std::size_t count,
                 float factor, std::uint16_t increment) {
  float* __restrict p = state;
  float* __restrict m = state + count;
  float* __restrict v = state + 2 * count;
  std::uint16_t* __restrict out = parameter;
  for (std::size_t i = 0; i < count; ++i) {
    // Loads before stores: p[i], m[i] and v[i] are 64 KiB apart, and a load waits for an earlier store whose
    // address has the same low 12 bits.
    const float new_p = p[i] * factor, new_m = m[i] * factor, new_v = v[i] * factor;
    const auto new_out = static_cast<std::uint16_t>(gradient[i] + increment);
    p[i] = new_p;
    m[i] = new_m;
    v[i] = new_v;
    out[i] = new_out;
  }
}

PENSTOCK_WIDEST
void scale_one_moment_block(float* state, const std::uint16_t* gradient, std::uint16_t* parameter,
                            std::size_t count, float factor, std::uint16_t increment) {
  float* __restrict p = state;
  float* __restrict m = state + count;
  std::uint16_t* __restrict out = parameter;
  for (std::size_t i = 0; i < count; ++i) {
    const float new_p = p[i] * factor, new_m = m[i] * factor;
    const auto new_out = static_cast<std::uint16_t>(gradient[i] + increment);
    p[i] = new_p;
    m[i] = new_m;
    out[i] = new_out;
  }
}

PENSTOCK_WIDEST
void update_block(const kernels::AdamCoefficients& coefficients, float* state, const std::uint16_t* gradient,
                  std::uint16_t* parameter, std::size_t count) {
  const kernels::AdamCoefficients c = coefficients;
  float* __restrict p = state;
  float* __restrict m = state + count;
  float* __restrict v = state + 2 * count;
  const std::uint16_t* __restrict in = gradient;
  std::uint16_t* __restrict out = parameter;
  for (std::size_t i = 0; i < count; ++i) {
    const float g = std::bit_cast<float>(std::uint32_t{in[i]} << 16) * c.gradient_factor;
    const float new_m = m[i] * c.beta1 + g * c.one_minus_beta1;
    const float new_v = v[i] * c.beta2 + (g * g) * c.one_minus_beta2;
    const float ratio = new_m / (std::sqrt(new_v) * c.denominator_factor + c.epsilon);
    const float new_p = p[i] + (p[i] * c.decay + ratio * c.step_factor);
    p[i] = new_p;
    m[i] = new_m;
    v[i] = new_v;
    const auto bits = std::bit_cast<std::uint32_t>(new_p);
    out[i] = static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
}

PENSTOCK_WIDEST
void update_block(const kernels::AdamCoefficients& coefficients, float* state, const float* gradient,
                  std::size_t count) {
  const kernels::AdamCoefficients c = coefficients;
  float* __restrict p = state;
  float* __restrict m = state + count;
  float* __restrict v = state + 2 * count;
  const float* __restrict in = gradient;
  for (std::size_t i = 0; i < count; ++i) {
    const float g = in[i] * c.gradient_factor;
    const float new_m = m[i] * c.beta1 + g * c.one_minus_beta1;
    const float new_v = v[i] * c.beta2 + (g * g) * c.one_minus_beta2;
    const float ratio = new_m / (std::sqrt(new_v) * c.denominator_factor + c.epsilon);
    p[i] = p[i] + (p[i] * c.decay + ratio * c.step_factor);
    m[i] = new_m;
    v[i] = new_v;
  }
}

}  // namespace penstock::bench
