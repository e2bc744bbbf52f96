#pragma once

#include "measure/statistics.hpp"

#include <penstock/base/units.hpp>

#include <string>
#include <vector>

namespace penstock::bench {

/// Copies of one size in one direction, by CUDA's calls and by the library's. Rates in GB/s.
struct CopyRow {
  std::string direction;
  ByteCount size;
  measure::Center bare, penstock, ratio;  ///< ratio: penstock / bare of the same round
};

/// A kernel, or the copy on the device with which kernels are compared.
struct KernelRow {
  std::string name;
  double bytes_per_element;
  measure::Center rate, to_copy;  ///< GB/s; its rate divided by that of the copy in the same round
};

}  // namespace penstock::bench
