#include "cpu_adam/muon_step.hpp"
#include "tiers/memory/host_arena.hpp"
#include "zero/layout/commit_parts.hpp"
#include "zero/layout/device_plan.hpp"
#include "zero/layout/host_staging.hpp"
#include "zero/layout/padded.hpp"
#include "zero/layout/plan_checks.hpp"
#include "zero/layout/plan_fingerprint.hpp"
#include "zero/layout/rank_bytes.hpp"
#include "zero/layout/tiles.hpp"
#include "zero/layout/update_plan.hpp"
#include "zero/layout/update_slot.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <algorithm>

namespace penstock::zero {

namespace {

/// Sets what is kept in the device's memory.
void plan_device_kept(MemoryPlan& plan, const RankBytes& rank) {
  if (plan.tiles_on_device) {
    plan.device_tiles = rank.tiles;
    plan.device_accumulators = rank.gradients;
  }
  if (plan.shards_on_device) plan.device_shards = rank.shards;
}

/// Sets the memory for slots of the peers. Ranks whose device's memory is the host's have them in their transport.
void plan_collectives(MemoryPlan& plan, const Config& config, const ShardLayout& shards,
                      std::uint32_t ranks) {
  if (config.penstock.reduction != Reduction::exact || ranks == 1) return;
  for (const FlatLayout& flat : shards.flats()) {
    if (flat.frozen) continue;
    plan.exact_slots_max = std::max(plan.exact_slots_max, size_of(config.dtype) * flat.shard.value());
  }
  plan.device_collectives = round_up(plan.exact_slots_max * (ranks - 1), extent_alignment);
}

/// Sets the memory for what kernels report, for copies of what is kept on the device, and for Muon's matrix.
Result<void> plan_results(MemoryPlan& plan, const Config& config, const ModelLayout& model,
                          const ShardLayout& shards, const RankBytes& rank) {
  PENSTOCK_TRY_ASSIGN(const HostPiece piece, HostPiece::of(plan, config, rank.longest_tile));
  plan.host_piece = piece.size;
  ByteCount all, largest;
  if (plan.device_squares) {
    for (const FlatLayout& flat : shards.flats()) {
      if (flat.frozen) continue;
      const ByteCount partials = partials_bytes(flat.shard);
      all += partials;
      largest = std::max(largest, partials);
    }
  }
  for (const UnitLayout& unit : model.units) {
    for (const ParameterLayout& parameter : unit.parameters) {
      if (!model.groups[parameter.group].use_muon || model.groups[parameter.group].frozen) continue;
      const ByteCount scratch = cpu_adam::muon_scratch_bytes({parameter.rows(), parameter.columns()});
      plan.host_matrix = std::max(plan.host_matrix, round_up(scratch, UpdateSlot::alignment));
    }
  }
  plan.device_partials = round_up(largest, extent_alignment);
  plan.host_results = host_results(plan, all);
  return ok();
}

/// The needs of host memory that do not depend on the budget.
struct HostNeed {
  bool tiles_on_disk = false;  ///< tiles are on disk unless host memory has room for them
  bool may_spill = false;      ///< gradients are on disk if host memory has no room for them
  StreamedSizes streamed;
  ByteCount ring;         ///< for the tiles in flight
  ByteCount checkpoints;  ///< for the checkpoints in flight, if they are on disk
  ByteCount resident;     ///< tensors that are not offloaded to disk

  [[nodiscard]] ByteCount minimum(const RankBytes& rank) const {
    return host_staging(streamed) + resident + (may_spill ? ByteCount() : rank.gradients);
  }
};

/// One is stored, one is loaded, and one is loaded ahead.
constexpr std::uint32_t checkpoints_in_flight = 3;

/// `leases` is for the shards that are leased as gathered flats, if shards are on disk.
HostNeed host_need_with(const MemoryPlan& plan, const Config& config, const RankBytes& rank,
                        ByteCount leases) {
  HostNeed need{.tiles_on_disk =
                    config.offload_optimizer.device == OffloadDevice::nvme && rank.tile_count > 0};
  need.may_spill = plan.shards_on_disk || need.tiles_on_disk;
  if (!plan.shares_memory && !plan.tiles_on_device) need.streamed.incoming = rank.largest_trained_shard;
  if (need.may_spill) need.streamed.gradient = rank.largest_gradient;
  if (plan.shards_on_disk) {
    need.streamed.shard = rank.largest_disk_shard;
    need.streamed.leases = leases;
  }
  need.resident += rank.shards - rank.disk_shards;
  if (need.tiles_on_disk) {
    need.streamed.tile = rank.largest_tile;
    need.ring = rank.largest_tile *
                std::min(tile_ring(config.penstock.tiles_in_flight, plan.update.tiles()), rank.tile_count);
  } else {
    need.resident += rank.tiles;
  }
  need.resident += plan.host_results;
  if (!plan.checkpoints.leave_device()) return need;
  if (need.may_spill) {
    need.streamed.checkpoint = plan.checkpoints.size;
    need.checkpoints = plan.checkpoints.size * std::min(plan.checkpoints.count, checkpoints_in_flight);
  } else {
    need.resident += plan.checkpoints.size * plan.checkpoints.count;
  }
  return need;
}

/// This rank's part of the configured host budget; zero if none is configured.
ByteCount given_host_budget(const MemoryPlan& plan, const Config& config) {
  return config.penstock.host_budget / plan.local_ranks;
}

/// Sets host_leases and host_lease_gap.
HostNeed host_need(MemoryPlan& plan, const Config& config, const RankBytes& rank, const ShardLayout& shards) {
  HostNeed need = host_need_with(plan, config, rank, {});
  if (!plan.shares_memory) return need;
  if (plan.shards_on_disk) plan.host_lease_gap = lease_gap(need.streamed);
  const LeasePlan leases = plan_leases(plan, config, shards);
  plan.host_leases = leases.wanted;
  need = host_need_with(plan, config, rank, leases.wanted);
  const ByteCount given = given_host_budget(plan, config);
  if (given.is_zero() || given >= need.minimum(rank)) return need;
  plan.host_leases = leases.minimum;
  return host_need_with(plan, config, rank, leases.minimum);
}

/// Sets host_staging_min, host_minimum and host_budget. The budget is this rank's part of the configured one. If none
/// is configured, it is the sum of staging, tile ring, resident tensors and all gradients.
Result<void> plan_host_budget(MemoryPlan& plan, const Config& config, const RankBytes& rank,
                              const HostNeed& need) {
  plan.host_staging_min = host_staging(need.streamed);
  plan.host_minimum = need.minimum(rank);
  const ByteCount everything =
      plan.host_staging_min + need.ring + need.checkpoints + need.resident + rank.gradients;
  const ByteCount given = config.penstock.host_budget;
  const ByteCount budget = given.is_zero() ? everything : given_host_budget(plan, config);
  plan.host_budget = ByteCount(budget.value() / extent_alignment.bytes() * extent_alignment.bytes());
  if (plan.host_budget >= plan.host_minimum) return ok();
  return Error(ErrorCode::budget_too_small, "plan_memory")
      .reason("the host budget is too small to make progress")
      .where("penstock.host_budget")
      .wanted("at least " + to_exact_string(plan.host_minimum * plan.local_ranks))
      .got(given)
      .note("needed  staging " + to_string(plan.host_staging_min) + " and resident " +
            to_string(plan.host_minimum - plan.host_staging_min) + " for each of " +
            std::to_string(plan.local_ranks) + " ranks")
      .advice("raise the budget, use smaller tiles or units, or offload more to nvme");
}

/// Sets how many prefetched tiles fit in `room` bytes so that none is evicted before its update.
void plan_read_ahead(MemoryPlan& plan, const StreamedSizes& largest, ByteCount room, std::uint32_t at_most) {
  const auto limited = [&](std::uint64_t tiles) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(tiles, at_most));
  };
  // The update leases a shard and a gradient of each flat. Each of these leases can split the free memory so that one
  // tile less fits. Other tiles are being updated.
  const std::uint64_t flats = plan.update.flats, updating = plan.update.tiles();
  const ByteCount leased = (largest.shard + largest.gradient) * flats;
  const std::uint64_t fragmented =
      ((largest.shard.is_zero() ? 0u : 1u) + (largest.gradient.is_zero() ? 0u : 1u)) * flats;
  const std::uint64_t slots = (room - leased) / largest.tile;
  plan.tiles_ahead = limited(slots > fragmented + updating ? slots - fragmented - updating : 0);
  // A prefetched tile of a later flat splits the free memory into one more gap. That gap may be too small for the later
  // flat's shard or gradient, so that each such tile needs room for itself and for a gap of that size.
  const ByteCount need = std::max({largest.tile, largest.shard, largest.gradient});
  const ByteCount reserved = leased + need * (2 * flats + 1) + largest.tile * (updating - 1);
  plan.tiles_ahead_next_flats =
      room > reserved ? std::min(plan.tiles_ahead, limited((room - reserved) / (largest.tile + need))) : 0;
}

/// How many flats can be updated at a time, if `room` bytes are free for what streams through host memory. One is
/// enough where the CPU updates all tiles, one after the other. On the device a tile would else wait at each end of a
/// flat for those before it.
std::uint32_t flats_updating(const MemoryPlan& plan, const StreamedSizes& largest, ByteCount room) {
  if (plan.update.device_slots == 0) return 1;
  const ByteCount leases = largest.shard + largest.gradient;
  if (leases.is_zero()) return plan.update.tiles();
  // As host_staging() for two flats: four leases leave five gaps.
  // Before them, the gradient of the second flat waits beside the leases of the first one.
  const ByteCount two =
      std::max(leases * 2 + std::max(largest.tile, largest.shard) * 5, leases + largest.gradient * 3);
  return room >= two + largest.tile * plan.update.tiles() ? 2 : 1;
}

/// Places checkpoints in `left` bytes, and returns how many of these are taken: by those that stay in host memory, and
/// by those in flight to and from the disk.
ByteCount place_checkpoints(MemoryPlan& plan, const HostNeed& need, ByteCount left) {
  MemoryPlan::Checkpoints& checkpoints = plan.checkpoints;
  if (!checkpoints.leave_device()) return {};
  if (!need.may_spill) return checkpoints.in_host = checkpoints.count, ByteCount();  // they are resident
  if (plan.gradients_on_disk) return {};
  // What is taken from the tiles in flight would cost more than a checkpoint that moves.
  const ByteCount beside_ring = left - std::min(left, need.ring), all = checkpoints.size * checkpoints.count;
  if (all <= beside_ring) return checkpoints.in_host = checkpoints.count, all;
  if (left < need.checkpoints) return {};
  const ByteCount rest = beside_ring - std::min(beside_ring, need.checkpoints);
  checkpoints.in_host = static_cast<std::uint32_t>(rest / checkpoints.size);
  return need.checkpoints + checkpoints.size * checkpoints.in_host;
}

/// Whether shards on disk may have their home in host memory. Gradients on disk would evict them, since their leases
/// divide the memory; and Eviction::reuse_distance drops by a rule of its own.
bool may_have_homes(const MemoryPlan& plan, const Config& config) {
  return plan.shards_on_disk && !plan.gradients_on_disk &&
         config.penstock.eviction != swap::Eviction::reuse_distance;
}

/// Gives shards on disk a home in `left` bytes, one after the other those that fit, and returns what they take.
ByteCount place_shards(MemoryPlan& plan, const Config& config, const ShardLayout& shards, ByteCount left) {
  for (std::size_t f = plan.flats_in_host; f < shards.flats().size(); ++f) {
    const FlatLayout& flat = shards.flats()[f];
    const ByteCount shard = padded(flat.shard, config.dtype);
    if (plan.home_shards + shard > left) continue;
    plan.home_shards += shard;
    if (flat.frozen) plan.home_frozen_shards += shard;
    plan.flats_at_home.push_back(static_cast<std::uint32_t>(f));
  }
  return plan.home_shards;
}

/// Assigns the memory beyond the minimum: first to gradients, because spilled ones are written and read; then to
/// parameter shards, which are read several times a step and written once; then to checkpoints and to tiles, which are
/// read and written once a step. Room for the tiles in flight is left by the shards that have their home there, which
/// these do not evict.
void place_in_host(MemoryPlan& plan, const Config& config, const ShardLayout& shards, const RankBytes& rank,
                   const HostNeed& need) {
  ByteCount left = plan.host_budget - plan.host_minimum;
  const auto take = [&left](ByteCount bytes) { return bytes <= left ? (left -= bytes, true) : false; };
  plan.gradients_on_disk = need.may_spill && !take(rank.gradients);
  bool shards_stay = false;
  if (may_have_homes(plan, config)) {
    left -= place_shards(plan, config, shards, left - std::min(left, need.ring));
    shards_stay = plan.home_shards == rank.disk_shards;
  } else {
    shards_stay = plan.shards_on_disk && take(rank.disk_shards);
  }
  left -= place_checkpoints(plan, need, left);
  if (!need.tiles_on_disk) {
    plan.tiles_in_host = plan.tiles_on_device ? 0 : plan.tiles;
  } else if (!plan.gradients_on_disk && take(need.ring)) {
    plan.tiles_in_host = std::min<std::uint64_t>(left / rank.largest_tile, plan.tiles);
  }
  StreamedSizes sweep = need.streamed;
  if (!plan.gradients_on_disk) sweep.gradient = {};
  if (shards_stay) sweep.shard = {};
  const ByteCount fixed = need.resident + (plan.gradients_on_disk ? ByteCount() : rank.gradients) +
                          (shards_stay ? rank.disk_shards : plan.home_shards) +
                          (need.tiles_on_disk ? rank.largest_tile * plan.tiles_in_host : ByteCount()) +
                          (need.may_spill ? plan.checkpoints.size * plan.checkpoints.in_host : ByteCount());
  const ByteCount room = plan.host_budget - fixed;
  plan.update.flats = flats_updating(plan, sweep, room);
  // An engine that shares the memory may evict the copies of shards for which there is room.
  StreamedSizes beside_others = sweep;
  beside_others.shard = need.streamed.shard;
  plan.host_held = held_cases(beside_others, plan.update.flats);
  if (need.tiles_on_disk) plan_read_ahead(plan, sweep, room, config.penstock.tiles_in_flight);
}

/// The bytes of the tiles that have no room in host memory.
Result<ByteCount> disk_tile_bytes(const MemoryPlan& plan, const Config& config, const ShardLayout& shards) {
  ByteCount bytes;
  std::uint64_t number = 0;
  for (const FlatLayout& flat : shards.flats()) {
    for (const TileRange& range : cut_into_tiles(flat, plan.tile_elements)) {
      if (plan.in_host(number++)) continue;
      PENSTOCK_TRY_ASSIGN(const ByteCount tile, padded_tile(config, flat, range));
      bytes += tile;
    }
  }
  return bytes;
}

/// Sets what the last commit keeps in the swap files, and what is copied to its own.
Result<void> plan_commits(MemoryPlan& plan, const Config& config, const ShardLayout& shards) {
  if (!config.is_durable()) return ok();
  std::uint64_t number = 0;
  for (std::size_t f = 0; f < shards.flats().size(); ++f) {
    const FlatLayout& flat = shards.flats()[f];
    const bool on_disk = plan.shard_on_disk(f);
    if (commits_parameters(config, flat)) {
      if (on_disk) plan.swap_committed += padded(flat.shard, config.dtype);
      for (const TileRange& part : commit_parts(flat.shard, parameter_block(config.dtype))) {
        if (!on_disk) plan.committed_copies += padded(part.count, config.dtype);
      }
    }
    const cpu_adam::TileLayout layout = tile_layout(config, flat);
    PENSTOCK_TRY_ASSIGN(const ByteCount block, cpu_adam::block_bytes(layout, cpu_adam::block_elements));
    for (const TileRange& tile : cut_into_tiles(flat, plan.tile_elements)) {
      if (!plan.tiles_on_device && !plan.in_host(number++)) {
        PENSTOCK_TRY_ASSIGN(const ByteCount bytes, padded_tile(config, flat, tile));
        plan.swap_committed += bytes;
        continue;
      }
      for (const TileRange& part : commit_parts(tile.count, block)) {
        PENSTOCK_TRY_ASSIGN(const ByteCount bytes, padded_tile(config, flat, part));
        plan.committed_copies += bytes;
      }
    }
  }
  return ok();
}

/// Sets the bytes that are kept in host memory and on disk.
void predict_held(MemoryPlan& plan, const RankBytes& rank, const HostNeed& need) {
  plan.host_tiles = rank.tiles - plan.disk_tiles;
  plan.host_shards = rank.shards - rank.disk_shards;
  plan.disk_shards = rank.disk_shards;
  plan.disk_frozen_shards = rank.disk_frozen_shards;
  (plan.gradients_on_disk ? plan.disk_gradients : plan.host_gradients) = rank.gradients;
  const MemoryPlan::Checkpoints& checkpoints = plan.checkpoints;
  if (checkpoints.leave_device()) {
    plan.host_checkpoints = checkpoints.size * checkpoints.in_host;
    plan.disk_checkpoints = checkpoints.size * (checkpoints.count - checkpoints.in_host);
  }
  plan.swap_tensor_max =
      std::max({need.streamed.tile, need.streamed.shard, need.streamed.gradient, need.streamed.checkpoint});
  plan.swap_bytes =
      plan.disk_shards + plan.disk_gradients + plan.disk_tiles + plan.disk_checkpoints + plan.swap_committed;
}

void predict_traffic(MemoryPlan& plan, const Config& config, const RankBytes& rank) {
  plan.tile_reads = plan.tile_writes = plan.disk_tiles;
  plan.tile_rereads_max =
      std::min(plan.disk_tiles, rank.largest_tile * (plan.tiles_ahead + plan.update.tiles()));
  const ByteCount streamed = plan.disk_shards - plan.home_shards;
  plan.shard_writes = streamed - (plan.disk_frozen_shards - plan.home_frozen_shards);
  // For the forward and for the backward. Where host memory has no room for the gradients, their leases divide it so
  // that a shard may be evicted between its prefetch and its use.
  plan.shard_reads_max = streamed * (plan.gradients_on_disk ? 4 : 2);
  plan.gradient_reads_max = plan.disk_gradients * 2;
  plan.gradient_writes_max = plan.disk_gradients;
  plan.checkpoint_writes_max = plan.disk_checkpoints;
  const bool reads = cpu_adam::shares_parameter(tile_layout(config).format);
  plan.update_shard_reads_max = reads ? plan.shard_writes : ByteCount();
}

/// The first flats whose shards have at most Config::max_in_cpu elements together.
std::uint32_t flats_in_host(const Config& config, const ShardLayout& shards) {
  ElementCount left = config.max_in_cpu.value_or(ElementCount());
  std::uint32_t count = 0;
  for (const FlatLayout& flat : shards.flats()) {
    if (flat.shard > left) break;
    left -= flat.shard;
    ++count;
  }
  return count;
}

}  // namespace

ByteCount MemoryPlan::host_allocated() const {
  return ByteCount(round_up(host_budget.value(), tiers::HostArena::page.value()));
}

ByteCount MemoryPlan::host_staging() const {
  return host_budget - host_shards - host_gradients - host_tiles - host_checkpoints - host_results;
}

namespace {

Result<MemoryPlan> plan_with(ElementCount tile_elements, const Config& config, const ModelLayout& model,
                             const ShardLayout& shards, std::uint32_t ranks, std::uint32_t local_ranks,
                             tiers::DeviceMemory device_memory) {
  MemoryPlan plan;
  plan.fingerprint = plan_fingerprint(config, model, ranks);
  plan.ranks = ranks;
  plan.local_ranks = local_ranks;
  plan.shares_memory = ranks == 1 && device_memory == tiers::DeviceMemory::host;
  plan.flats_in_host = flats_in_host(config, shards);
  plan.shards_on_disk =
      config.offload_param.device == OffloadDevice::nvme && plan.flats_in_host < shards.flats().size();
  if (device_memory == tiers::DeviceMemory::separate) {
    plan.device_squares = true;
    plan.tiles_on_device = config.offload_optimizer.device == OffloadDevice::none;
    plan.shards_on_device = plan.tiles_on_device && config.offload_param.device == OffloadDevice::none;
    plan_collectives(plan, config, shards, ranks);
  }
  PENSTOCK_TRY(check_optimizer_place(plan, config));
  plan.tile_elements = tile_elements;
  PENSTOCK_TRY_ASSIGN(const RankBytes all, RankBytes::of(plan, config, shards));
  plan_device_kept(plan, all);
  plan.tiles = all.tile_count;
  PENSTOCK_TRY_ASSIGN(plan.update, plan_update(plan, config, all.longest_tile));
  PENSTOCK_TRY(plan_results(plan, config, model, shards, all));
  plan_checkpoint_slots(plan, config, shards, model);
  const RankBytes rank = all.without(plan.tiles_on_device, plan.shards_on_device);
  const HostNeed need = host_need(plan, config, rank, shards);
  PENSTOCK_TRY(plan_host_budget(plan, config, rank, need));
  place_in_host(plan, config, shards, rank, need);
  if (need.tiles_on_disk) {
    PENSTOCK_TRY_ASSIGN(plan.disk_tiles, disk_tile_bytes(plan, config, shards));
  }
  PENSTOCK_TRY(plan_commits(plan, config, shards));
  predict_held(plan, rank, need);
  predict_traffic(plan, config, rank);
  plan.checkpoint_reads_max = plan.disk_checkpoints * model.checkpoints.reads;
  PENSTOCK_TRY(plan_device(plan, config, shards, model));
  return plan;
}

}  // namespace

Result<MemoryPlan> plan_memory(const Config& config, const ModelLayout& model, std::uint32_t ranks,
                               std::uint32_t local_ranks, tiers::DeviceMemory device_memory) {
  PENSTOCK_TRY(check_inputs(config, model, ranks, local_ranks));
  const ShardLayout shards(model, ranks);
  std::vector<ElementCount> lengths = tile_lengths(config, device_memory);
  const ElementCount last = lengths.back();
  lengths.pop_back();
  for (const ElementCount length : lengths) {
    auto plan = plan_with(length, config, model, shards, ranks, local_ranks, device_memory);
    if (plan && plan->tiles >= streamed_tiles_min) return plan;
  }
  return plan_with(last, config, model, shards, ranks, local_ranks, device_memory);
}

}  // namespace penstock::zero
