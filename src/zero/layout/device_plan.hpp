#pragma once

#include "zero/layout/flat_residency.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

namespace penstock::zero {

/// What the engine of this plan uses in place.
[[nodiscard]] InPlace in_place_of(const MemoryPlan& plan, const Config& config);

/// What the configuration lets the engine gather and reduce.
[[nodiscard]] ResidencyLimits limits_of(const MemoryPlan& plan, const Config& config,
                                        const ShardLayout& shards);

/// The host memory for parameter shards that are leased as gathered flats.
struct LeasePlan {
  ByteCount minimum;  ///< with which a step can be done
  ByteCount wanted;   ///< for which the configured device budget leaves room; at least `minimum`
};

/// Rehearses the leases of a step. Precondition: plan.shares_memory; plan.host_lease_gap is set.
[[nodiscard]] LeasePlan plan_leases(const MemoryPlan& plan, const Config& config, const ShardLayout& shards);

/// Sets plan.checkpoints but for those in host memory. Precondition: the other members that device_kept() adds up are
/// set.
void plan_checkpoint_slots(MemoryPlan& plan, const Config& config, const ShardLayout& shards,
                           const ModelLayout& model);

/// Rehearses a step in the configured device budget, or in the smallest one that suffices, and sets the members
/// device_* of `plan`. Leases that plan.host_leases limits count as part of the configured budget.
///
/// Errors: budget_too_small, when the configured budget does not suffice.
Result<void> plan_device(MemoryPlan& plan, const Config& config, const ShardLayout& shards,
                         const ModelLayout& model);

}  // namespace penstock::zero
