#pragma once

#include "kernels/adam_coefficients.hpp"

// The border between the portable part and the translation units compiled for one instruction set each. No
// other header of ours crosses it: see kernels/element.hpp.
namespace penstock::cpu_adam::detail {

/// Elements of a tile up to `end`, from where the piece before ended.
struct AdamPiece {
  unsigned long end;
  kernels::AdamCoefficients coefficients;
};

/// One block of a tile. Nothing overlaps.
struct AdamBlock {
  void* state;  ///< in the format's layout, see state_format.hpp
  const void* gradient;
  void* parameter;
  unsigned long first;         ///< the number of its first element in the tile
  unsigned long count;         ///< of elements
  const AdamPiece* pieces;     ///< from that of the block's first element on
  unsigned seed;               ///< of stochastic rounding, for this block and step
  bool nontemporal_parameter;  ///< at a multiple of 64 B, in one piece, of a format that does not read it
};

/// Updates the elements; false when a master or a second moment has become non-finite.
using AdamKernel = bool (*)(const AdamBlock&) noexcept;

/// [state format][gradient dtype][parameter dtype], by the numbers of StateFormat and DType. Null where a
/// format does not take a parameter dtype.
struct AdamKernels {
  AdamKernel update[4][3][3];
};

extern const AdamKernels adam_kernels_scalar;
#if defined(__x86_64__)
extern const AdamKernels adam_kernels_x86_64_v2;
extern const AdamKernels adam_kernels_x86_64_v3;
extern const AdamKernels adam_kernels_x86_64_v4;
#elif defined(__aarch64__)
extern const AdamKernels adam_kernels_neon;
#endif

}  // namespace penstock::cpu_adam::detail
