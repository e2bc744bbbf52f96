#pragma once

#include <penstock/swap/runtime_options.hpp>
#include <penstock/zero/layout/memory_plan.hpp>

namespace penstock::zero {

/// What the engine of `plan` takes of its runtime. What has its home there counts as what stays: it is evicted only
/// where nothing else can move, which a collective that waits for a peer hides.
inline swap::RuntimeUse runtime_use(const MemoryPlan& plan, std::uint32_t engine_number) {
  return {.owner = engine_number,
          .host = plan.host_budget,
          .staging = plan.host_staging() - plan.homes(),
          .staging_least = plan.host_staging_min,
          .swap = plan.swap_bytes,
          .held = plan.host_held,
          .in_place = plan.shards_on_disk ? plan.host_leases : ByteCount(),
          .in_place_gap = plan.host_lease_gap};
}

}  // namespace penstock::zero
