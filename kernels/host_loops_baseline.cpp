#include "kernels/host_loops.hpp"
#include "kernels/lane.hpp"

// For the instructions that every processor of the architecture has; the compiler vectorises the loops.
namespace penstock::kernels {

namespace {

using Lane = ScalarLane;

template <class T>
struct Squares {
  static constexpr unsigned long step = 16;
  double lanes[step];

  void add(const T* from) {
    for (unsigned long i = 0; i < step; ++i) {
      const double value = widen(from[i]);
      lanes[i] += value * value;
    }
  }
  void store(double* to) const {
    for (unsigned long i = 0; i < step; ++i) to[i] = lanes[i];
  }
};

#include "kernels/host_loops.inl"

}  // namespace

const HostLoops host_loops_baseline = all_loops;

}  // namespace penstock::kernels
