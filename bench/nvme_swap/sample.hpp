#pragma once

#include "swap/simulate/simulated_disks.hpp"

#include <cstdint>
#include <optional>

namespace penstock::bench {

/// The measurements of one run of one contestant, the same for fio and for Penstock.
struct Sample {
  double gb_per_second = 0;                    ///< 1 GB is 1e9 bytes
  double cpu_s_per_gb = 0;                     ///< user and system, of the whole process
  double driver_s_per_gb = 0;                  ///< of our driver threads alone; 0 for fio
  double p50_us = 0, p99_us = 0, p999_us = 0;  ///< of requests, from submission to completion
  std::uint64_t requests = 0;
  double update_s = 0;                                 ///< mean of a tile's update, with compute only
  std::optional<swap::DiskRates> disk = std::nullopt;  ///< beside such updates, where the swap is simulated
};

}  // namespace penstock::bench
