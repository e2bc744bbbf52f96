#pragma once

#include "kernels/adam_coefficients.hpp"

// The interface between the portable code and the translation units that are compiled for one instruction set each.
// Of our headers it includes only adam_coefficients.hpp, for the reason given in kernels/element.hpp.
namespace penstock::cpu_adam::detail {

/// The elements of a tile from the previous piece's end up to `end`.
struct Piece {
  unsigned long end;
  kernels::AdamCoefficients coefficients;
};

/// One block of a tile. State, gradient and parameter do not overlap.
struct Block {
  void* state;  ///< in the format's layout, see state_format.hpp
  const void* gradient;
  void* parameter;
  unsigned long first;         ///< the number of its first element in the tile
  unsigned long count;         ///< number of elements
  const Piece* pieces;         ///< the piece of the block's first element and those after it
  unsigned seed;               ///< of stochastic rounding, for this block and step
  bool nontemporal_parameter;  ///< only if `parameter` is at a multiple of 64 B, in one piece, and never read
};

/// Updates the elements; returns false when a number that UpdateOutcome reports has become non-finite.
using Kernel = bool (*)(const Block&) noexcept;

/// Indexed [gradient dtype][parameter dtype] by the numbers of DType. Null where the format does not support the
/// parameter dtype.
struct FormatKernels {
  Kernel update[3][3];
};
/// Indexed [optimizer][state format] by the numbers of Optimizer and StateFormat. Without kernels where an optimizer
/// does not support a format.
struct Kernels {
  FormatKernels of[3][6];
};

extern const Kernels adam_kernels_scalar;
#if defined(__x86_64__)
extern const Kernels adam_kernels_x86_64_v2;
extern const Kernels adam_kernels_x86_64_v3;
extern const Kernels adam_kernels_x86_64_v4;
#elif defined(__aarch64__)
extern const Kernels adam_kernels_neon;
#endif

}  // namespace penstock::cpu_adam::detail
