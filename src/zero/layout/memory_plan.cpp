#include "cpu_adam/muon_step.hpp"
#include "tiers/memory/host_arena.hpp"
#include "zero/layout/choose_evenly.hpp"
#include "zero/layout/commit_parts.hpp"
#include "zero/layout/device_plan.hpp"
#include "zero/layout/engine_tensors.hpp"
#include "zero/layout/host_placement.hpp"
#include "zero/layout/padded.hpp"
#include "zero/layout/plan_checks.hpp"
#include "zero/layout/plan_fingerprint.hpp"
#include "zero/layout/rank_bytes.hpp"
#include "zero/layout/rank_nodes.hpp"
#include "zero/layout/tiles.hpp"
#include "zero/layout/update_plan.hpp"
#include "zero/layout/update_slot.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <algorithm>

namespace penstock::zero {

namespace {

/// Sets what is kept in the device's memory. Errors: those of room_on_device().
Result<void> plan_device_kept(MemoryPlan& plan, const Config& config, const RankBytes& rank) {
  if (plan.shards_on_device) plan.device_shards = rank.shards;
  if (plan.gradients_on_device) plan.device_accumulators = rank.gradients;
  plan.tiles = rank.tile_count;
  plan.tile_places.resize(plan.tiles);
  PENSTOCK_TRY_ASSIGN(const ByteCount room, room_on_device(plan, config, rank.largest_tile, rank.tiles));
  plan.device_tiles = choose_evenly(
      rank.tile_sizes, room, [](std::uint64_t) { return false; },
      [&plan](std::uint64_t tile) {
        plan.tile_places[tile].kept = true;
        ++plan.tiles_kept;
      });
  return ok();
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
      if (is_on_disk(place_of_tile(plan, number++))) {
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
  (plan.tiles_on_disk ? plan.disk_tiles : plan.host_tiles) = rank.tiles;
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
  plan.tile_reads = plan.tile_writes = plan.disk_tiles - plan.home_tiles;
  plan.tile_rereads_max =
      std::min(plan.tile_reads, rank.largest_tile * (plan.tiles_ahead + plan.update.host_tiles()));
  // Gradients that come during the update may evict what it has read ahead.
  if (config.penstock.update_in_backward) plan.tile_rereads_max = plan.tile_reads;
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

/// What is planned, beside the rank and the length of tiles.
struct PlannedRun {
  const Config& config;
  const ModelLayout& model;
  const ShardLayout& shards;
  std::uint32_t ranks, local_ranks;
  tiers::DeviceMemory device_memory;
};

Result<MemoryPlan> plan_with(ElementCount tile_elements, const PlannedRun& run, std::uint32_t local_rank) {
  const auto& [config, model, shards, ranks, local_ranks, device_memory] = run;
  MemoryPlan plan;
  plan.fingerprint = plan_fingerprint(config, model, ranks);
  plan.ranks = ranks;
  plan.local_ranks = local_ranks;
  plan.planned_local_rank = local_rank;
  plan.shares_memory = ranks == 1 && device_memory == tiers::DeviceMemory::host;
  plan.flats_in_host = flats_in_host(config, shards);
  plan.shards_on_disk =
      config.offload_param.device == OffloadDevice::nvme && plan.flats_in_host < shards.flats().size();
  if (device_memory == tiers::DeviceMemory::separate) {
    plan.device_squares = true;
    plan.gradients_on_device = config.offload_optimizer.device == OffloadDevice::none;
    plan.shards_on_device = plan.gradients_on_device && config.offload_param.device == OffloadDevice::none;
    plan_collectives(plan, config, shards, ranks);
  }
  PENSTOCK_TRY(check_optimizer_place(plan, config));
  plan.tile_elements = tile_elements;
  PENSTOCK_TRY_ASSIGN(const RankBytes all, RankBytes::of(plan, config, shards));
  PENSTOCK_TRY(plan_device_kept(plan, config, all));
  divide_update(plan, config, all);
  PENSTOCK_TRY(plan_update(plan, config, all.longest_tile));
  PENSTOCK_TRY(plan_results(plan, config, model, shards, all));
  plan_checkpoint_slots(plan, config, shards, model);
  const RankBytes rank = all.beside_device(plan);
  plan.tiles_on_disk = config.offload_optimizer.device == OffloadDevice::nvme && rank.tile_count > 0;
  const HostNeed need = host_need(plan, config, rank, shards);
  PENSTOCK_TRY(plan_host_budget(plan, config, shards, rank, need));
  place_in_host(plan, config, shards, rank, need);
  PENSTOCK_TRY(plan_commits(plan, config, shards));
  predict_held(plan, rank, need);
  predict_traffic(plan, config, rank);
  plan.checkpoint_reads_max = plan.disk_checkpoints * model.checkpoints.reads;
  PENSTOCK_TRY(plan_device(plan, config, shards, model));
  return plan;
}

/// Chooses the length of tiles for this rank.
Result<MemoryPlan> plan_with_tiles(const PlannedRun& run, std::uint32_t local_rank) {
  std::vector<ElementCount> lengths = tile_lengths(run.config, run.device_memory);
  const ElementCount last = lengths.back();
  lengths.pop_back();
  for (const ElementCount length : lengths) {
    auto plan = plan_with(length, run, local_rank);
    if (plan && plan->tiles >= streamed_tiles_min) return plan;
  }
  return plan_with(last, run, local_rank);
}

}  // namespace

Result<MemoryPlan> plan_memory(const Config& config, const ModelLayout& model, std::uint32_t ranks,
                               std::uint32_t local_ranks, tiers::DeviceMemory device_memory,
                               std::optional<std::uint32_t> local_rank) {
  PENSTOCK_TRY(check_inputs(config, model, ranks, local_ranks, local_rank.value_or(0)));
  const ShardLayout shards(model, ranks);
  const PlannedRun run{config, model, shards, ranks, local_ranks, device_memory};
  // First of all ranks the one with the least memory: the others have its tiles, and are refused where it is.
  const std::uint32_t least = rank_with_least_memory(config);
  PENSTOCK_TRY_ASSIGN(MemoryPlan plan, plan_with_tiles(run, least));
  if (!local_rank) return plan;
  const auto part = [&](std::uint32_t rank) { return host_budget_of_rank(config, local_ranks, rank); };
  if (part(*local_rank) != part(least)) return plan_with(plan.tile_elements, run, *local_rank);
  plan.planned_local_rank = *local_rank;
  return plan;
}

}  // namespace penstock::zero
