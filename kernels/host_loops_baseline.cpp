#include "kernels/host_loops.hpp"

#include "kernels/element.hpp"

// What every processor of the architecture has.
namespace penstock::kernels {

namespace {

#include "kernels/host_loops.inl"

}  // namespace

const HostLoops host_loops_baseline = all_loops;

}  // namespace penstock::kernels
