#pragma once

#include "zero/layout/flat_residency.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

namespace penstock::zero {

/// What the engine of this plan uses in place.
[[nodiscard]] InPlace in_place_of(const MemoryPlan& plan, const Config& config);

/// Rehearses a step in the configured device budget, or in the smallest one that suffices, and sets the members
/// device_* of `plan`.
///
/// Errors: budget_too_small, when the configured budget does not suffice.
Result<void> plan_device(MemoryPlan& plan, const Config& config, const ShardLayout& shards,
                         const ModelLayout& model);

}  // namespace penstock::zero
