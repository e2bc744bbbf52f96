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

/// A kernel, and a copy on the device that reads and writes as many bytes: the time that a launch takes to begin and to
/// end counts for both. Rates in GB/s.
struct KernelRow {
  std::string name;
  double bytes_per_element;
  measure::Center rate, copy, to_copy;  ///< to_copy: rate / copy of the same round
};

}  // namespace penstock::bench
