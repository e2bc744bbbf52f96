#pragma once

#include "kernels/adam_coefficients.hpp"

#include <cstddef>
#include <cstdint>

namespace penstock::bench {

/// One block of what no Adam in fp32 states can beat: each byte of its streams is read or written once, by
/// the widest vectors there are, and multiplied by a constant. `state` is [p][m][v], `count` elements each.
void scale_block(float* state, const std::uint16_t* gradient, std::uint16_t* parameter, std::size_t count,
                 float factor, std::uint16_t increment);

/// Decoupled AdamW on one block as one writes it down, left to the compiler: the kernel's own operations in
/// its order, bf16 in and out.
void update_block(const kernels::AdamCoefficients& coefficients, float* state, const std::uint16_t* gradient,
                  std::uint16_t* parameter, std::size_t count);

/// The same from an fp32 gradient, with no parameter out: as a pass of its own.
void update_block(const kernels::AdamCoefficients& coefficients, float* state, const float* gradient,
                  std::size_t count);

/// x *= factor, as a pass of its own.
void scale_gradient(float* x, std::size_t count, float factor);

}  // namespace penstock::bench
