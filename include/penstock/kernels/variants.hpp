#pragma once

// The variants of the Adam kernels.

#include <cstdint>
#include <string_view>

namespace penstock::kernels {

/// How a tile stores master weights and moments. The numbers are written to disk and are never reused.
enum class StateFormat : std::uint8_t {
  fp32 = 0,          ///< master, m, v in fp32: 12 bytes a parameter, the reference
  split = 1,         ///< remainder of the bf16 master, m, v in fp32: 10
  split_bf16 = 2,    ///< remainder, m, v in bf16: 6
  split_q8 = 3,      ///< remainder, m in 9 bits, v in 11, with a scale of each for 256 parameters: 4.51
  moments = 4,       ///< m, v in fp32; the parameter is the master: 8
  moments_bf16 = 5,  ///< m, v in bf16; the parameter, in bf16, is the master: 4
};

[[nodiscard]] std::string_view to_string(StateFormat format);

/// Where weight decay is applied: to the gradient (L2), or to the parameter (decoupled; Loshchilov & Hutter 2019). A
/// decay of zero is `none`, so that it costs nothing and computes no 0 × inf.
enum class AdamDecay : std::uint8_t { none, l2, decoupled };

/// Elements of a block, the part of a tile with one checksum; the last block of a tile may be shorter. The layout on
/// disk depends on it.
inline constexpr std::uint64_t adam_block_elements = 16384;

}  // namespace penstock::kernels

namespace penstock {

/// Instruction sets that the Adam kernel is compiled for. All give the same bits.
enum class Isa : std::uint8_t { scalar, x86_64_v2, x86_64_v3, x86_64_v4, neon };

[[nodiscard]] std::string_view to_string(Isa isa);

/// Whether this build contains the kernel and this machine can run it.
[[nodiscard]] bool is_runnable(Isa isa);

struct IsaChoice {
  Isa isa;
  std::string_view reason;  ///< why not a wider one; a string literal
};

/// The widest instruction set that is runnable here, determined once.
[[nodiscard]] IsaChoice best_isa();

}  // namespace penstock
