#pragma once

#include "kit/ptx_instructions.hpp"

#include <span>

/// The instructions that the threads of a warp execute together.
namespace penstock::test::ptx {

/// shfl.sync.down: each thread gets the value of the one a given number of lanes above, within its segment.
void shuffle_down(std::span<Thread> warp, const Operands& operands);
/// shfl.sync.bfly: of the one whose lane is its own XOR a given number.
void shuffle_butterfly(std::span<Thread> warp, const Operands& operands);
/// ldmatrix.sync.aligned.m8n8.x4: four matrices of 8 x 8 elements of 16 bits in shared memory. Lanes 8 i to 8 i + 7
/// hold the addresses of the rows of matrix i.
void load_matrices(std::span<Thread> warp, const Operands& operands);
/// With .trans: each of the matrices transposed.
void load_matrices_transposed(std::span<Thread> warp, const Operands& operands);
/// mma.sync.aligned.m16n8k16 with operands of bf16 and sums of fp32. Adds the products one after the other and rounds
/// after each; a GPU's order is not documented.
void multiply_matrices(std::span<Thread> warp, const Operands& operands);

}  // namespace penstock::test::ptx
