#pragma once

#include "zero/simulate/planned_step.hpp"

namespace penstock::bench {

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
