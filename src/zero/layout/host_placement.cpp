#include "zero/layout/host_placement.hpp"

#include "zero/layout/choose_evenly.hpp"
#include "zero/layout/device_plan.hpp"
#include "zero/layout/padded.hpp"
#include "zero/layout/rank_nodes.hpp"
#include "zero/layout/update_plan.hpp"

#include <algorithm>

namespace penstock::zero {

namespace {

/// One is stored, one is loaded, and one is loaded ahead.
constexpr std::uint32_t checkpoints_in_flight = 3;

/// `leases` is for the shards that are leased as gathered flats, if shards are on disk.
HostNeed host_need_with(const MemoryPlan& plan, const Config& config, const RankBytes& rank,
                        ByteCount leases) {
  const bool states_may_be = config.offload_optimizer.device == OffloadDevice::nvme && plan.tiles > 0;
  HostNeed need{.may_spill = plan.shards_on_disk || states_may_be};
  need.streamed.in_backward = config.penstock.update_in_backward;
  if (!plan.shares_memory && !plan.gradients_on_device) need.streamed.incoming = rank.largest_trained_shard;
  if (need.may_spill) need.streamed.gradient = rank.largest_gradient;
  if (plan.shards_on_disk) {
    need.streamed.shard = rank.largest_disk_shard;
    need.streamed.leases = leases;
  }
  need.resident += rank.shards - rank.disk_shards;
  if (plan.tiles_on_disk) {
    need.streamed.tile = rank.largest_tile;
    need.ring =
        rank.largest_tile *
        std::min(tile_ring(config.penstock.tiles_in_flight, plan.update.host_tiles()), rank.tile_count);
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

/// Sets how many prefetched tiles fit in `room` bytes so that none is evicted before its update.
void plan_read_ahead(MemoryPlan& plan, const StreamedSizes& largest, ByteCount room, std::uint32_t at_most) {
  const auto limited = [&](std::uint64_t tiles) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(tiles, at_most));
  };
  // The update leases a shard and a gradient of each flat. Each of these leases can split the free memory so that one
  // tile less fits. Other tiles are being updated.
  const std::uint64_t flats = plan.update.flats, updating = plan.update.host_tiles();
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

/// How many tiles fit in `room` bytes beside `others`: all shards that move, one of which would be read once more if it
/// gave way, and checkpoints in flight. With a gap between both ends of memory.
std::uint32_t tiles_between(const StreamedSizes& largest, ByteCount room, ByteCount others) {
  const std::uint64_t fit = (room - std::min(room, others)) / largest.tile;
  return static_cast<std::uint32_t>(fit - std::min<std::uint64_t>(fit, 1));
}

/// How many flats can be updated at a time, if `room` bytes are free for what streams through host memory. One is
/// enough where the CPU updates all tiles, one after the other. On the device a tile would else wait at each end of a
/// flat for those before it.
std::uint32_t flats_updating(const MemoryPlan& plan, const StreamedSizes& largest, ByteCount room) {
  if (plan.update.streamed.is_zero()) return 1;
  const ByteCount leases = largest.shard + largest.gradient;
  if (leases.is_zero()) return plan.update.host_tiles();
  // As host_staging() for two flats: four leases leave five gaps.
  // Before them, the gradient of the second flat waits beside the leases of the first one.
  const ByteCount two =
      std::max(leases * 2 + std::max(largest.tile, largest.shard) * 5, leases + largest.gradient * 3);
  return room >= two + largest.tile * plan.update.host_tiles() ? 2 : 1;
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

/// Chooses the tiles that stay in `room` bytes of host memory, and returns their bytes.
ByteCount tiles_stay_in_host(MemoryPlan& plan, const RankBytes& rank, ByteCount room) {
  return choose_evenly(
      rank.tile_sizes, room, [&plan](std::uint64_t tile) { return plan.tile_kept(tile); },
      [&plan](std::uint64_t tile) {
        plan.tile_places[tile].in_host = true;
        ++plan.tiles_in_host;
      });
}

/// Names the budget, and what it gives the plan's rank.
Error host_budget_too_small(const MemoryPlan& plan, const Config& config) {
  Error error = Error(ErrorCode::budget_too_small, "plan_memory")
                    .reason("the host budget is too small to make progress");
  const PenstockConfig& penstock = config.penstock;
  if (penstock.node_budgets.empty()) {
    return std::move(error)
        .where("penstock.host_budget")
        .wanted("at least " + to_exact_string(plan.host_minimum * plan.local_ranks))
        .got(penstock.host_budget);
  }
  const std::uint32_t node = penstock.rank_nodes[plan.planned_local_rank];
  return std::move(error)
      .where("penstock.node_budgets")
      .object("node " + std::to_string(node) + ", of which rank " + std::to_string(plan.planned_local_rank) +
              " of the machine has a part")
      .wanted("at least " + to_exact_string(plan.host_minimum) + " for each rank of a node")
      .got(host_budget_of_rank(config, plan.local_ranks, plan.planned_local_rank));
}

/// What would need less host memory.
std::string advice_for(const MemoryPlan& plan, const Config& config, const RankBytes& rank) {
  std::string advice = "raise the budget, use smaller tiles or units";
  if (!plan.tiles_on_disk && plan.tiles > 0) advice += ", or offload optimizer states to nvme";
  if (!plan.shards_on_disk) return advice + ", or offload parameters to nvme";
  // Small parameters take less than the staging that those on disk need.
  MemoryPlan in_memory = plan;
  in_memory.shards_on_disk = false;
  RankBytes bytes = rank;
  bytes.disk_shards = {};
  const ByteCount least = host_need_with(in_memory, config, bytes, {}).minimum(bytes);
  if (least < plan.host_minimum)
    advice +=
        ", or keep parameters in host memory, by offload_param.device cpu: the least budget is then about " +
        to_string(least * plan.local_ranks);
  return advice;
}

/// How its bytes follow from the largest tensors.
std::string describe_staging(const StreamedSizes& largest) {
  const swap::HeldLeases held = largest_case(largest);
  std::string beside;
  if (!held.bytes.is_zero()) {
    beside = to_string(held.bytes) + " in " + std::to_string(held.count) +
             (held.count == 1 ? " tensor that is held" : " tensors that are held") + ", and ";
  }
  return beside + std::to_string(held.count + 1) + " times " + to_string(held.waits_for) +
         ": the tensor that is waited for fits into one of the gaps between them" +
         (largest.leases.is_zero() ? "" : "; " + to_string(largest.leases) + " of shards used in place");
}

}  // namespace

HostNeed host_need(MemoryPlan& plan, const Config& config, const RankBytes& rank, const ShardLayout& shards) {
  HostNeed need = host_need_with(plan, config, rank, {});
  if (!plan.shares_memory) return need;
  if (plan.shards_on_disk) plan.host_lease_gap = lease_gap(need.streamed);
  const LeasePlan leases = plan_leases(plan, config, shards);
  plan.host_leases = leases.wanted;
  need = host_need_with(plan, config, rank, leases.wanted);
  const ByteCount given = host_budget_of_rank(config, plan.local_ranks, plan.planned_local_rank);
  if (given.is_zero() || given >= need.minimum(rank)) return need;
  plan.host_leases = leases.minimum;
  return host_need_with(plan, config, rank, leases.minimum);
}

Result<void> plan_host_budget(MemoryPlan& plan, const Config& config, const ShardLayout& shards,
                              const RankBytes& rank, const HostNeed& need) {
  plan.host_staging_min = host_staging(need.streamed);
  plan.host_minimum = need.minimum(rank);
  const ByteCount everything =
      plan.host_staging_min + need.ring + need.checkpoints + need.resident + rank.gradients;
  const auto budget_of = [&](std::uint32_t local_rank) {
    const ByteCount given = host_budget_of_rank(config, plan.local_ranks, local_rank);
    const ByteCount budget = given.is_zero() ? everything : given;
    return ByteCount(budget.value() / extent_alignment.bytes() * extent_alignment.bytes());
  };
  plan.host_budget = budget_of(plan.planned_local_rank);
  plan.host_of_machine = plan.host_budget * plan.local_ranks;
  if (parts_differ(config)) {
    plan.host_of_machine = {};
    for (std::uint32_t other = 0; other < plan.local_ranks; ++other) plan.host_of_machine += budget_of(other);
  }
  if (plan.host_budget >= plan.host_minimum) return ok();
  Error error = host_budget_too_small(plan, config)
                    .note("needed  staging " + to_string(plan.host_staging_min) + " and resident " +
                          to_string(plan.host_minimum - plan.host_staging_min) + " for each of " +
                          std::to_string(plan.local_ranks) + " ranks");
  if (!plan.host_staging_min.is_zero())
    error = std::move(error).note("staging " + describe_staging(need.streamed));
  return std::move(error)
      .note("largest " + longest_in_host(shards, config) + "; a tile of " + to_string(rank.largest_tile))
      .advice(advice_for(plan, config, rank));
}

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
  if (!plan.tiles_on_disk) {
    (void)tiles_stay_in_host(plan, rank, rank.tiles);
  } else if (!plan.gradients_on_disk && take(need.ring)) {
    plan.home_tiles = tiles_stay_in_host(plan, rank, left);
  }
  StreamedSizes sweep = need.streamed;
  if (!plan.gradients_on_disk) sweep.gradient = {};
  if (shards_stay) sweep.shard = {};
  const ByteCount fixed = need.resident + (plan.gradients_on_disk ? ByteCount() : rank.gradients) +
                          (shards_stay ? rank.disk_shards : plan.home_shards) + plan.home_tiles +
                          (need.may_spill ? plan.checkpoints.size * plan.checkpoints.in_host : ByteCount());
  ByteCount room = plan.host_budget - fixed;
  if (sweep.in_backward)
    room -= std::min(room, sweep.incoming + sweep.gradient);  // of gradients that come meanwhile
  plan.update.flats = flats_updating(plan, sweep, room);
  // An engine that shares the memory may evict the copies of shards for which there is room.
  StreamedSizes beside_others = sweep;
  beside_others.shard = need.streamed.shard;
  plan.host_held = held_cases(beside_others, plan.update.flats);
  if (plan.tiles_on_disk) plan_read_ahead(plan, sweep, room, config.penstock.tiles_in_flight);
  if (plan.tiles_on_disk && sweep.in_backward && !plan.gradients_on_disk) {
    const ByteCount moving = shards_stay ? ByteCount() : rank.disk_shards - plan.home_shards;
    plan.update.tiles_between = tiles_between(sweep, room, moving + need.checkpoints);
  }
}

}  // namespace penstock::zero
