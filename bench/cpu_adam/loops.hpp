#pragma once

#include "kernels/adam_coefficients.hpp"

#include <cstddef>
#include <cstdint>

namespace penstock::bench {

/// The lower bound for any Adam on fp32 states, for one block: each byte of its streams is read or written once,
/// with the widest vectors of this CPU, and multiplied by a constant. `state` is [p][m][v], `count` elements each.
void scale_block(float* state, const std::uint16_t* gradient, std::uint16_t* parameter, std::size_t count,
                 float factor, std::uint16_t increment);

/// The same for an optimizer that keeps one moment: `state` is [p][moment].
void scale_one_moment_block(float* state, const std::uint16_t* gradient, std::uint16_t* parameter,
                            std::size_t count, float factor, std::uint16_t increment);

/// Decoupled AdamW on one block as a plain loop that the compiler vectorises: the kernel's operations in the same
/// order, bf16 in and out.
void update_block(const kernels::AdamCoefficients& coefficients, float* state, const std::uint16_t* gradient,
                  std::uint16_t* parameter, std::size_t count);

/// The same with an fp32 gradient and without the parameter output: one pass of "passes".
void update_block(const kernels::AdamCoefficients& coefficients, float* state, const float* gradient,
                  std::size_t count);

/// x *= factor: one pass of "passes".
void scale_gradient(float* x, std::size_t count, float factor);

}  // namespace penstock::bench
