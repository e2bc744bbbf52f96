#pragma once

#include "swap/simulate/simulated_disks.hpp"

#include <penstock/swap/disk_benchmark.hpp>

#include <utility>

namespace penstock::bench {

/// The disk's rates now, each measured for `duration`.
inline Result<swap::DiskRates> measure_disk(swap::DiskBenchmark& load, TimePoint duration) {
  swap::DiskRates rates{};
  for (const auto& [pattern, rate] : {std::pair(swap::BenchmarkPattern::read, &rates.read),
                                      std::pair(swap::BenchmarkPattern::write, &rates.write),
                                      std::pair(swap::BenchmarkPattern::mixed, &rates.mixed)}) {
    PENSTOCK_TRY_ASSIGN(const auto sample, load.run(pattern, duration));
    *rate = sample.bytes_per_second();
  }
  return rates;
}

}  // namespace penstock::bench
