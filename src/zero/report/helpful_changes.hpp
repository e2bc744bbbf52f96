#pragma once

#include <penstock/zero/config/config.hpp>
#include <penstock/zero/engine/engine.hpp>
#include <penstock/zero/launch/rank_identity.hpp>
#include <penstock/zero/layout/memory_plan.hpp>
#include <penstock/zero/layout/model_layout.hpp>
#include <penstock/zero/report/run_report.hpp>

namespace penstock::zero {

/// Sets RunReport::predicted_step, predicted_step_traffic, predicted_step of traffic and drives, changes and
/// changes_note of a rank: a step is simulated (src/zero/simulate) on a machine with the rates that the run has had,
/// and again with each change. What the trainer's thread did not wait for parameters, updates, checkpoints or tensors
/// is its arithmetic. The rate of a drive is its configured limit, else that at which it has moved bytes while it was
/// busy. A step has as many micro-batches as those of the run in the mean.
void add_changes(RunReport& report, const Config& config, const ModelLayout& model, const MemoryPlan& plan,
                 const RankIdentity& identity, const StepTimes& times, tiers::DeviceMemory device_memory);

}  // namespace penstock::zero
