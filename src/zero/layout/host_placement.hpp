#pragma once

#include "zero/layout/host_staging.hpp"
#include "zero/layout/rank_bytes.hpp"
#include "zero/layout/shard_layout.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

namespace penstock::zero {

/// The needs of host memory that do not depend on the budget.
struct HostNeed {
  bool may_spill = false;  ///< gradients are on disk if host memory has no room for them
  StreamedSizes streamed;
  ByteCount ring;         ///< for the tiles in flight
  ByteCount checkpoints;  ///< for the checkpoints in flight, if they are on disk
  ByteCount resident;     ///< tensors that are not offloaded to disk

  [[nodiscard]] ByteCount minimum(const RankBytes& rank) const {
    return host_staging(streamed) + resident + (may_spill ? ByteCount() : rank.gradients);
  }
};

/// Of a plan whose tiles, update and checkpoint slots are set. Sets host_leases and host_lease_gap.
[[nodiscard]] HostNeed host_need(MemoryPlan& plan, const Config& config, const RankBytes& rank,
                                 const ShardLayout& shards);
/// Sets host_staging_min, host_minimum and host_budget. The budget is this rank's part of the configured one. If none
/// is configured, it is the sum of staging, tile ring, resident tensors and all gradients.
///
/// Errors: budget_too_small, with the least one.
Result<void> plan_host_budget(MemoryPlan& plan, const Config& config, const ShardLayout& shards,
                              const RankBytes& rank, const HostNeed& need);
/// Assigns the memory beyond the minimum: first to gradients, because spilled ones are written and read; then to
/// parameter shards, which are read several times a step and written once; then to checkpoints and to tiles, which are
/// read and written once a step. Sets MemoryPlan::Tile::in_host. Shards and tiles on disk have their home in that
/// memory. Room for the tiles in flight is left by the shards that have their home there, which these do not evict.
void place_in_host(MemoryPlan& plan, const Config& config, const ShardLayout& shards, const RankBytes& rank,
                   const HostNeed& need);

}  // namespace penstock::zero
