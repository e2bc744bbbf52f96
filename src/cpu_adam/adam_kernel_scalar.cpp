#include "cpu_adam/adam_kernel.hpp"
#include "kernels/adam_formula.hpp"
#include "kernels/one_moment_formulas.hpp"
#include "kernels/q8_bound.hpp"
#include "kernels/state_codes.hpp"

// One element at a time, on any architecture.
namespace penstock::cpu_adam::detail {

namespace {

using WideLane = kernels::ScalarLane;
using PairLane = kernels::ScalarLane;
void fence() {}
/// The loop of largest_masked() for a count that is known at compile time.
template <class Number>
inline kernels::U32 largest_of_run(const kernels::U8* from, Number mask) {
  kernels::U32 most = 0;
  for (unsigned i = 0; i < kernels::q8_run; ++i) {
    most = WideLane::larger(most, kernels::U32{kernels::read_as<Number>(from + sizeof(Number) * i)} & mask);
  }
  return most;
}

#include "cpu_adam/adam_kernel.inl"

}  // namespace

const Kernels adam_kernels_scalar = all_kernels;

}  // namespace penstock::cpu_adam::detail
