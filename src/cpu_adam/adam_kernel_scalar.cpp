#include "cpu_adam/adam_kernel.hpp"
#include "kernels/adam_formula.hpp"
#include "kernels/state_codes.hpp"

// One element at a time, on any architecture.
namespace penstock::detail {

namespace {

using WideLane = kernels::ScalarLane;
using PairLane = kernels::ScalarLane;
void fence() {}

#include "cpu_adam/adam_kernel.inl"

}  // namespace

const AdamKernels adam_kernels_scalar = all_kernels;

}  // namespace penstock::detail
