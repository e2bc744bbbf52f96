#include "kernels/host_loops.hpp"

#include "kernels/element.hpp"

// Compiled with -march=x86-64-v3: AVX2 and F16C.
namespace penstock::kernels {

namespace {

#include "kernels/host_loops.inl"

}  // namespace

const HostLoops host_loops_x86_64_v3 = all_loops;

}  // namespace penstock::kernels
