#pragma once

#include "rows.hpp"

#include <vector>

namespace penstock::bench {

struct CopyOptions {
  std::vector<ByteCount> sizes;
  ByteCount total;  ///< moved in each direction by one measurement
  int rounds = 1;
};

/// Measures copies between registered host memory and CUDA device 0, to the device, to the host, and both at once.
/// Throws BadResult.
std::vector<CopyRow> measure_copies(const CopyOptions& options);

}  // namespace penstock::bench
