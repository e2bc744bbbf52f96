#include "kernels/host_loops.hpp"

#include "kernels/element.hpp"

// Compiled with -march=x86-64-v4: AVX-512 F, BW, CD, DQ, VL.
namespace penstock::kernels {

namespace {

#include "kernels/host_loops.inl"

}  // namespace

const HostLoops host_loops_x86_64_v4 = all_loops;

}  // namespace penstock::kernels
