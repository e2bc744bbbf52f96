#include "kernels/host_loops.hpp"
#include "kernels/lane.hpp"

// What every processor of the architecture has: the compiler vectorises it.
namespace penstock::kernels {

namespace {

using Lane = ScalarLane;

struct Squares {
  double sum;
  void add(float value) { sum += double{value} * double{value}; }
  void store(double* to) const { *to = sum; }
};

#include "kernels/host_loops.inl"

}  // namespace

const HostLoops host_loops_baseline = all_loops;

}  // namespace penstock::kernels
