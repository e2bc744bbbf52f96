#pragma once

#include <penstock/zero/layout/memory_plan.hpp>

namespace penstock::zero {

/// Rehearses a step in the device budget that is configured, or in the least that does, and writes its device_* into
/// `plan`.
///
/// Errors: budget_too_small, when the configured budget is less than the least.
Result<void> plan_device(MemoryPlan& plan, const Config& config, const ShardLayout& shards,
                         const ModelLayout& model);

}  // namespace penstock::zero
