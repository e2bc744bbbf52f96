#pragma once

#include "rows.hpp"

#include <vector>

namespace penstock::bench {

struct KernelOptions {
  ElementCount elements;
  int launches = 1;  ///< in one measurement
  int rounds = 1;
};

/// Measures the library's kernels on CUDA device 0, each beside a copy of as many bytes. Throws BadResult.
std::vector<KernelRow> measure_kernels(const KernelOptions& options);

}  // namespace penstock::bench
