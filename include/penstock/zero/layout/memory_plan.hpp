#pragma once

#include <penstock/swap/runtime_options.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/layout/model_layout.hpp>

namespace penstock::tiers {
class NumaTopology;
}

namespace penstock::zero {

/// Where everything of one rank will live, decided before anything is allocated. The runtime is made from
/// it, and the engine follows it, so that what is predicted is what is used.
struct MemoryPlan {
  ByteCount host_budget;      ///< of this rank
  ByteCount host_minimum;     ///< the least that a run can make progress with
  ByteCount device_budget;    ///< of this rank
  ByteCount device_minimum;   ///< likewise
  ByteCount swap_bytes;       ///< of this rank's swap files, all paths together
  ByteCount swap_tensor_max;  ///< of the largest tensor in them

  std::uint32_t local_ranks = 1;  ///< that share this machine
  bool shards_on_disk = false;
  bool gradients_on_disk = false;              ///< they spill when the host budget is short
  std::uint64_t tiles = 0, tiles_in_host = 0;  ///< of these, how many have their home in host memory
  // Tiles read ahead of their update, as many as nothing can push out: of the flat that is being updated, whose
  // shard and gradient have their room, and of those after it, whose shards and gradients still need some.
  std::uint32_t tiles_ahead = 0, tiles_ahead_next_flats = 0;

  // Held at most, by purpose. What can go stays while there is room: the budget bounds their sum.
  ByteCount device_gathered, device_gradients;
  ByteCount host_shards, host_gradients, host_tiles, host_incoming;
  ByteCount host_staging;  ///< what moves through host memory at least
  ByteCount disk_shards, disk_gradients, disk_tiles;
  // Moved in one step, but for shard_reads_max, which is of a micro-batch. Shards that find room stay, so
  // that what is read of them, in the update too where they are halves of the masters, is an upper bound.
  ByteCount tile_reads, tile_writes, shard_reads_max, update_shard_reads_max, shard_writes;

  /// Whether tile number `tile` of the sweep has its home in host memory: they are spread evenly, so that
  /// they hide the disk's time.
  [[nodiscard]] bool in_host(std::uint64_t tile) const {
    return (tile + 1) * tiles_in_host / tiles != tile * tiles_in_host / tiles;
  }

  /// What Runtime::create needs, of rank number `local_rank` on this machine: the budget, and those of the configured
  /// directories that are on the rank's NUMA node (all of them where none is, or where nothing is known). A rank's
  /// node is that of the cores that this thread may run on; where those are of several nodes, ranks are spread evenly.
  [[nodiscard]] swap::RuntimeOptions runtime_options(const Config& config, std::uint32_t local_rank) const;
  /// The same on a machine of that topology.
  [[nodiscard]] swap::RuntimeOptions runtime_options(const Config& config, std::uint32_t local_rank,
                                                     const tiers::NumaTopology& topology) const;
};

/// Plans one rank of `local_ranks` that share config.penstock.host_budget. Without budgets in the
/// configuration it takes what everything needs that is not offloaded further.
///
/// Errors: invalid_argument, of the layout, and for no ranks; invalid_config, of Config::validate(), and for
/// penstock.rank_nodes that are not one for each of `local_ranks`; budget_too_small, with the minimum and what it is
/// made of.
[[nodiscard]] Result<MemoryPlan> plan_memory(const Config& config, const ModelLayout& model,
                                             std::uint32_t ranks, std::uint32_t local_ranks);

}  // namespace penstock::zero
