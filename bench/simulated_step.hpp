#pragma once

#include "zero/simulate/planned_step.hpp"

#include <penstock/swap/disk_benchmark.hpp>

#include <chrono>

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

/// The mean of two measurements.
inline swap::DiskRates mean(const swap::DiskRates& a, const swap::DiskRates& b) {
  return {.read = (a.read + b.read) / 2, .write = (a.write + b.write) / 2, .mixed = (a.mixed + b.mixed) / 2};
}

/// What penstock simulate predicts of a step whose phases take `seconds` where all is in memory. All cores compute in
/// each phase.
inline Result<swap::ReplayedRound> predict_step(const zero::simulate::PlannedStep& step,
                                                const swap::DiskRates& disk,
                                                const zero::simulate::PhaseSeconds& seconds) {
  zero::simulate::Machine machine{.costs = {.disks = {{.rates = disk}}, .shared_processor = true}};
  set_use(machine.costs, step.trace, seconds);
  PENSTOCK_TRY_ASSIGN(const auto simulation, simulate(step.trace, machine, step.options));
  return simulation.steady;
}

}  // namespace penstock::bench
