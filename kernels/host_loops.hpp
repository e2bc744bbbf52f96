#pragma once

// The interface between the portable part of the host kernels and the translation units that are compiled for one
// instruction set each. It includes no other header, for the reason given in kernels/element.hpp.
namespace penstock::kernels {

/// Loops over `count` elements, indexed by the numbers of DType. Operands do not overlap. Each loop gives the same bits
/// for every instruction set.
struct HostLoops {
  /// [from][to]; null where both are the same.
  void (*cast[3][3])(const void* from, void* to, unsigned long count);
  void (*scale[3])(void* x, float factor, unsigned long count);
  /// [x][sum]
  void (*accumulate[3][3])(const void* x, void* sum, unsigned long count);
  /// In the order that Compute::square_sums describes for one block.
  double (*square_sum[3])(const void* x, unsigned long count);
};

/// For the instructions that every processor of the architecture has.
extern const HostLoops host_loops_baseline;
#if defined(__x86_64__)
extern const HostLoops host_loops_x86_64_v3;
extern const HostLoops host_loops_x86_64_v4;
#endif

}  // namespace penstock::kernels
