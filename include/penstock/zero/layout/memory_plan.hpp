#pragma once

#include <penstock/swap/runtime_options.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace penstock::tiers {
class NumaTopology;
}

namespace penstock::zero {

/// The memory and disk use of one rank, decided before anything is allocated. Runtime and engine are created from it,
/// so that they use what it predicts.
struct MemoryPlan {
  ByteCount host_budget;      ///< of this rank; with penstock.node_budgets, those of a machine may differ
  ByteCount host_of_machine;  ///< the host budgets of all ranks of this machine
  ByteCount host_minimum;     ///< the smallest budget with which a run can make progress
  ByteCount device_budget;    ///< of this rank
  ByteCount device_minimum;   ///< the smallest device budget with which a run can make progress
  ByteCount swap_bytes;       ///< in all swap files of this rank
  ByteCount swap_tensor_max;  ///< size of the largest tensor in the swap files
  /// Of them, those of the last commit, which stay while newer contents are written; see Engine::commit().
  ByteCount swap_committed;
  /// What a commit copies to files of its own, because it is in memory only; these have room for it twice.
  ByteCount committed_copies;

  std::uint64_t fingerprint = 0;         ///< of the configuration, layout and number of ranks; 0: not a plan
  std::uint32_t ranks = 1;               ///< among which parameters are divided
  std::uint32_t local_ranks = 1;         ///< ranks that share this machine and its host budget
  std::uint32_t planned_local_rank = 0;  ///< of these, the one whose host budget this is
  /// The rank is alone and its device's memory is host memory: tensors in host memory are not copied for the device,
  /// and a UnitLease gives access to the parameter shards themselves.
  bool shares_memory = false;
  /// What is kept in the device's memory, which is separate, beside tiles_kept: with offload_optimizer none the
  /// accumulated gradients; if offload_param is none too, the parameter shards.
  bool gradients_on_device = false, shards_on_device = false;
  ElementCount tile_elements;  ///< of each tile but the last ones of flats
  /// The device computes the squares of gradients of which no sum is kept in host memory. Its memory is separate.
  bool device_squares = false;
  bool shards_on_disk = false;  ///< all but the next ones
  std::uint32_t flats_in_host =
      0;  ///< the first flats, whose shards are kept in host memory: see Config::max_in_cpu
  /// Of the others, in ascending order, those whose shards have their home in host memory, with a place on disk. There
  /// is room for them in host_staging(), so that steps neither read nor write them. They go to disk for a commit, and
  /// where a limit of the memory, or another engine, evicts them.
  std::vector<std::uint32_t> flats_at_home = {};
  bool gradients_on_disk = false;  ///< gradients spill to disk, because the host budget is short
  bool tiles_on_disk = false;      ///< all tiles that the device does not keep have a place there
  /// All tiles; those that are kept in the device's memory, which the device updates: all with offload_optimizer none,
  /// else those for which penstock.device_states has room; of the others, those that stay in host memory. If
  /// tiles_on_disk, it is the home of these, as of flats_at_home.
  std::uint64_t tiles = 0, tiles_kept = 0, tiles_in_host = 0;
  /// Of each tile of the update, in order; see tile_kept(), in_host() and updated_on_device().
  struct Tile {
    bool kept = false, in_host = false, updated_on_device = false;
  };
  std::vector<Tile> tile_places = {};
  /// Maximum number of tiles prefetched while all of them belong to the flat that is being updated. With more, a tile
  /// could be evicted before its update.
  std::uint32_t tiles_ahead = 0;
  /// The same limit once some of them belong to a later flat. Smaller, because that flat's shard and gradient need room
  /// too.
  std::uint32_t tiles_ahead_next_flats = 0;

  /// Who updates the tiles.
  struct Update {
    /// Tiles that are on their way through the device at a time, each in a slot of its memory; 0: the CPU updates all.
    std::uint32_t device_slots = 0;
    ByteCount slot;  ///< size of a slot; device_budget includes all slots
    UpdateSplit split = UpdateSplit::ratio;
    /// That the device updates, tiles_kept included; automatic: that it may update, which are all.
    std::uint64_t tiles_by_device = 0;
    /// Of these, the bytes of states that are not kept on the device: they pass through the slots.
    ByteCount streamed;
    bool by_cpu = true;       ///< the CPU updates some tiles, or may
    std::uint32_t flats = 1;  ///< maximum number of flats whose tiles are updated at a time
    /// With penstock.update_in_backward: maximum number of tiles prefetched between two updates, for which there is
    /// room beside all shards.
    std::uint32_t tiles_between = 0;

    [[nodiscard]] ByteCount device_bytes() const { return slot * device_slots; }
    /// Tiles in host memory that are updated at a time, by the CPU and on the device.
    [[nodiscard]] std::uint32_t host_tiles() const {
      return (streamed.is_zero() ? 0u : device_slots) + (by_cpu ? 1u : 0u);
    }
  } update;

  /// Where activation checkpoints are, see ModelLayout::checkpoints.
  struct Checkpoints {
    std::uint32_t count = 0;
    ByteCount size;  ///< of each, rounded up to a slot
    /// On the device at a time, each in a slot of its memory. Fewer than all: the others are in host memory or on disk.
    std::uint32_t device_slots = 0;
    /// For so many, the last ones, host memory has room for as long as they exist; the others are on disk.
    std::uint32_t in_host = 0;

    [[nodiscard]] bool leave_device() const { return device_slots < count; }
    [[nodiscard]] ByteCount device_bytes() const { return size * device_slots; }
  } checkpoints;

  /// The most that is held of gathered flats and full gradients while units are used in the planned order: forward,
  /// then backward, one at a time.
  ByteCount device_gathered, device_gradients;
  /// The same for every order of use, and however many units are used at a time: all flats, if device_flats() has room
  /// for them. The bounds may add up to more; what is held at one time does not exceed device_flats().
  ByteCount device_gathered_max, device_gradients_max;
  ByteCount device_tiles, device_shards,
      device_accumulators;    ///< what is kept there; accumulators of gradients
  ByteCount device_partials;  ///< for the sums of the squares of one flat's gradient, if device_squares
  ByteCount exact_slots_max;  ///< see CollectiveNeeds; 0 unless the reduction is configured as exact
  /// For the peers' slots of an exact reduction, beside the engine's memory: see Communicator::scratch(). Ranks of one
  /// process do not use it.
  ByteCount device_collectives;
  ByteCount host_shards, host_gradients, host_tiles;  ///< what stays there; the rest of it is host_staging()
  /// What kernels report: sums of squares, and blocks that are not finite; host_piece, and host_matrix.
  ByteCount host_results;
  ByteCount host_piece;   ///< for the calls that set and read states: a piece of what is kept on the device
  ByteCount host_matrix;  ///< with Muon: what the update of the largest matrix takes
  ByteCount host_checkpoints;  ///< of those that never go to disk
  /// Memory with which tensors can move between tiers when all other memory is leased: the least of host_staging().
  ByteCount host_staging_min;
  /// If shares_memory: what the shards of leased units may take. Part of host_staging_min if shards are on disk, so
  /// that the units that a trainer may hold at a time are limited; else enough for all units.
  ByteCount host_leases;
  ByteCount host_lease_gap;  ///< how much of host_leases each shard takes beside its bytes
  /// What leases hold in host memory while they wait for more of it; beside other engines these add up.
  std::array<swap::HeldLeases, 3> host_held = {};
  ByteCount disk_shards, disk_gradients, disk_tiles, disk_checkpoints;
  ByteCount disk_frozen_shards;  ///< part of disk_shards: frozen parameters, which no step writes
  /// Parts of these: those of flats_at_home, and the tiles that have their home in host memory.
  ByteCount home_shards, home_frozen_shards, home_tiles;
  // Disk traffic of one step; shard_reads_max is that of one micro-batch that gathers each flat twice. The ledger's
  // prediction counts the gathers beyond these as they are made. Reads of shards are upper bounds, since shards stay in
  // memory while there is room. In split formats the update reads shards too: a master is the bf16 parameter plus the
  // remainder in the tile.
  ByteCount tile_reads, tile_writes, shard_reads_max, update_shard_reads_max, shard_writes;
  /// Upper bound for the first tiles of an update: they are read during the backward, may be evicted by gradients that
  /// wait for workers, by checkpoints, or, where the step ends without an update, in the next one, and are then read
  /// again.
  ByteCount tile_rereads_max;
  /// Upper bounds for gradients that spill, of one micro-batch. A gradient may be evicted between its prefetch and its
  /// use, and is then read twice.
  ByteCount gradient_reads_max, gradient_writes_max;
  /// Upper bounds of one micro-batch in which each checkpoint is written once and read CheckpointLayout::reads times.
  ByteCount checkpoint_reads_max, checkpoint_writes_max;

  /// What the rank allocates for host_budget: whole pages of 2 MiB.
  [[nodiscard]] ByteCount host_allocated() const;
  /// The part of host_budget for copies of what is on disk, which stay while there is room, and for reduced gradients
  /// on their way to their shards.
  [[nodiscard]] ByteCount host_staging() const;
  /// Whether the shard of flat number `flat` has a place on disk; whether host memory is its home nevertheless.
  [[nodiscard]] bool shard_on_disk(std::uint64_t flat) const {
    return shards_on_disk && flat >= flats_in_host;
  }
  [[nodiscard]] bool shard_at_home(std::uint64_t flat) const {
    return std::binary_search(flats_at_home.begin(), flats_at_home.end(), flat);
  }
  /// Whether tile number `tile` of the update is kept in the device's memory; if not, whether it stays in host memory.
  /// Both are spread evenly by their bytes, so that their updates overlap the disk transfers of the others.
  [[nodiscard]] bool tile_kept(std::uint64_t tile) const { return tile_at(tile).kept; }
  [[nodiscard]] bool in_host(std::uint64_t tile) const { return tile_at(tile).in_host; }
  /// Whether it has a place on disk, and its home in host memory nevertheless.
  [[nodiscard]] bool tile_at_home(std::uint64_t tile) const { return tiles_on_disk && in_host(tile); }
  /// The bytes of tensors with a place on disk and their home in host memory.
  [[nodiscard]] ByteCount homes() const { return home_shards + home_tiles; }
  /// Whether the device updates tile number `tile`; these are spread evenly too. With UpdateSplit::automatic, whether
  /// it may.
  [[nodiscard]] bool updated_on_device(std::uint64_t tile) const { return tile_at(tile).updated_on_device; }
  /// The part of device_budget that is not for gathered flats and full gradients.
  [[nodiscard]] ByteCount device_kept() const {
    return device_tiles + device_shards + device_accumulators + device_partials + device_collectives +
           update.device_bytes() + checkpoints.device_bytes();
  }
  /// The part of device_budget for gathered flats and full gradients.
  [[nodiscard]] ByteCount device_flats() const { return device_budget - device_kept(); }
  /// The rest of device_budget, as the engine allocates it beside device_flats(): one range for each kind of memory
  /// that Engine::park() gives back alone.
  [[nodiscard]] ByteCount device_of_parameters() const { return device_shards + checkpoints.device_bytes(); }
  [[nodiscard]] ByteCount device_of_gradients() const { return device_accumulators + device_partials; }
  [[nodiscard]] ByteCount device_of_optimizer() const { return device_tiles + update.device_bytes(); }

  /// Options for Runtime::create() of rank number `local_rank` on this machine: the budget, on the rank's NUMA nodes if
  /// the machine has several, and the configured directories whose drives are on these or whose node is unknown; all
  /// directories, if no directory qualifies. The rank's nodes are, in this order: penstock.rank_nodes[local_rank], if
  /// configured; the node that contains every core on which this thread may run; if those cores are on several nodes,
  /// nodes chosen so that the ranks are spread evenly over all: one, or several where there are fewer ranks than nodes.
  [[nodiscard]] swap::RuntimeOptions runtime_options(const Config& config, std::uint32_t local_rank) const;
  /// The same for a machine with the given topology.
  [[nodiscard]] swap::RuntimeOptions runtime_options(const Config& config, std::uint32_t local_rank,
                                                     const tiers::NumaTopology& topology) const;

 private:
  [[nodiscard]] Tile tile_at(std::uint64_t tile) const {
    return tile < tile_places.size() ? tile_places[tile] : Tile();
  }
};

/// An engine of several on one runtime.
struct PlannedEngine {
  const Config* config = nullptr;
  const MemoryPlan* plan = nullptr;
};
/// MemoryPlan::runtime_options() for a runtime that these engines of one rank share; create all of them before one gets
/// values. Host memory is the sum of the plans' budgets, and what they need beyond it because the leases of all engines
/// add up and divide the free memory. The settings of the runtime, such as eviction and I/O, are those of the first
/// configuration with swap directories; memory is pinned if one of them asks for it.
///
/// Errors: invalid_argument, for no engines, for null pointers, and for the plan of a rank that has another part of
/// penstock.node_budgets; invalid_config, when two configurations that use NVMe name different directories.
[[nodiscard]] Result<swap::RuntimeOptions> shared_runtime_options(std::span<const PlannedEngine> engines,
                                                                  std::uint32_t local_rank);

/// Plans rank `local_rank` of the `local_ranks` that share a machine and its host budget. None: the one whose part of
/// the budget is the smallest.
///
/// Only with penstock.node_budgets do parts differ. Then these figures of the ranks' plans may differ too: host_budget,
/// and what follows from the room in it, which is where gradients are, the flats and tiles at home, the checkpoints in
/// host memory, the tiles ahead, the flats updated at a time, host_held, and bytes in host memory and on disk. No other
/// rank depends on these: they change neither what collectives a rank starts, nor their order, nor what it commits. All
/// else is the same on all ranks of the machine: device memory, and the length of tiles, which is that of the smallest
/// part. So is a refusal, for then no rank waits for one that was refused: a budget is too small if the smallest part
/// is.
///
/// Without a configured host budget, it is the sum of staging, the tiles and checkpoints in flight, all gradients, and
/// the shards, tiles and checkpoints that are not on NVMe, where checkpoints are if anything else is. Without a
/// configured device budget, it is device_minimum and room for the flats that persist, see
/// Config::param_persistence_threshold. What is more than that is used for checkpoints first. If shares_memory, the
/// configured device budget counts leased shards too, which are in host memory, and only the rest is device_budget.
/// `device_memory` is Device::memory().
///
/// Errors: invalid_argument, for the layout, for a unit above penstock.unit_elements_max, for zero ranks or a rank that
/// there is not; invalid_config, of Config::validate(), for Muon without a group that uses it or the reverse, or if
/// penstock.rank_nodes does not have `local_ranks` entries; budget_too_small, with the minimum and its parts.
[[nodiscard]] Result<MemoryPlan> plan_memory(
    const Config& config, const ModelLayout& model, std::uint32_t ranks, std::uint32_t local_ranks,
    tiers::DeviceMemory device_memory = tiers::DeviceMemory::separate,
    std::optional<std::uint32_t> local_rank = std::nullopt);

}  // namespace penstock::zero
