#pragma once

#include "kit/ptx_instructions.hpp"

#include <span>

/// The instructions that the threads of a warp execute together.
namespace penstock::test::ptx {

/// shfl.sync.down: each thread gets the value of the one a given number of lanes above, within its segment.
void shuffle_down(std::span<Thread> warp, const Operands& operands);
/// shfl.sync.bfly: of the one whose lane is its own XOR a given number.
void shuffle_butterfly(std::span<Thread> warp, const Operands& operands);
/// mma.sync.aligned.m16n8k16 with operands of bf16 and sums of fp32. Adds the products one after the other and rounds
/// after each; a GPU's order is not documented.
void multiply_matrices(std::span<Thread> warp, const Operands& operands);

}  // namespace penstock::test::ptx
