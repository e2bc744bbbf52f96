#include "zero/layout/flat_residency.hpp"
#include "zero/layout/host_staging.hpp"
#include "zero/layout/tiles.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <algorithm>

namespace penstock::zero {

namespace {

// Extents and reservations are multiples of this; see FileSystem and MemoryBudget.
constexpr Alignment block(4096);

ByteCount padded(ElementCount elements, DType dtype) {
  return round_up(size_of(dtype) * elements.value(), block);
}

/// The two largest neighbouring units gathered, and the largest full gradients of one unit twice: one being
/// written, one landing.
ByteCount device_need(const ShardLayout& shards, const ModelLayout& model, DType dtype) {
  const auto unit_bytes = [&](std::uint32_t unit) {
    ByteCount bytes;
    for (const std::uint32_t flat : shards.needed_by(unit))
      bytes += padded(shards.flats()[flat].length, dtype);
    return bytes;
  };
  ByteCount two, one, shared;
  for (std::uint32_t u = 0; u < model.units.size(); ++u) {
    one = std::max(one, unit_bytes(u));
    two = std::max(two, unit_bytes(u) + (u + 1 < model.units.size() ? unit_bytes(u + 1) : ByteCount()));
  }
  // The gradient of a shared flat stays from its first user of the backward to its last.
  for (std::uint32_t f = 0; f < shards.flats().size(); ++f) {
    if (shards.user_count(f) > 1) shared += padded(shards.flats()[f].length, dtype);
  }
  return two + one + one + shared;
}

/// Rehearses a step in the budget that is given, or in the least that does.
Result<void> plan_device(MemoryPlan& plan, const Config& config, const ShardLayout& shards,
                         const ModelLayout& model) {
  const auto rehearse = [&](ByteCount budget) {
    return rehearse_steps(shards, model.units.size(), config.dtype, config.gradient_accumulation_steps,
                          budget);
  };
  // Units of different sizes leave gaps, so that the need alone may not do.
  const ByteCount need = device_need(shards, model, config.dtype);
  const ByteCount step = round_up(ByteCount(need.value() / 64), block);
  plan.device_minimum = need;
  auto peaks = rehearse(need);
  while (!peaks) peaks = rehearse(plan.device_minimum += step);

  plan.device_budget = plan.device_minimum;
  if (const ByteCount given = config.penstock.device_budget; !given.is_zero()) {
    if (given < plan.device_minimum) {
      return Error(ErrorCode::budget_too_small, "plan_memory")
          .reason("the device budget is too small for two gathered units and their gradients")
          .where("penstock.device_budget")
          .wanted(plan.device_minimum)
          .got(given)
          .advice("raise the budget or use smaller units");
    }
    // More room may be cut less well; what is known to do is in it.
    if (auto more = rehearse(given)) peaks = more, plan.device_budget = given;
  }
  plan.device_gathered = peaks->gathered;
  plan.device_gradients = peaks->gradients;
  return ok();
}

/// How many tiles may wait for their update in `room` bytes, without any of them being pushed out unused.
void plan_read_ahead(MemoryPlan& plan, const StreamedSizes& largest, ByteCount room, std::uint32_t at_most) {
  const auto limited = [&](std::uint64_t tiles) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(tiles, at_most));
  };
  // Beside the leased shard and gradient, each of which can spoil the room of one tile, and the tile at work.
  const std::uint64_t spoilt = (largest.shard.is_zero() ? 0u : 1u) + (largest.gradient.is_zero() ? 0u : 1u);
  const std::uint64_t slots = (room - largest.shard - largest.gradient) / largest.tile;
  plan.tiles_ahead = limited(slots > spoilt + 1 ? slots - spoilt - 1 : 0);
  // Each tile of a later flat is one more that can stand in the way of that flat's shard and gradient.
  const ByteCount need = std::max({largest.tile, largest.shard, largest.gradient});
  const ByteCount without = largest.shard + largest.gradient + need * 3;
  plan.tiles_ahead_next_flats =
      room > without ? std::min(plan.tiles_ahead, limited((room - without) / (largest.tile + need))) : 0;
}

std::vector<std::optional<std::uint32_t>> nodes_of_paths(const Config& config,
                                                         std::span<const std::filesystem::path> directories,
                                                         const tiers::NumaTopology& topology) {
  const auto& given = config.penstock.path_nodes;
  std::vector<std::optional<std::uint32_t>> nodes(given.begin(), given.end());
  if (!given.empty()) return nodes;
  for (const auto& directory : directories) nodes.push_back(topology.node_of_directory(directory));
  return nodes;
}

std::optional<std::uint32_t> node_of_rank(const Config& config, std::uint32_t local_rank,
                                          std::uint32_t local_ranks, const tiers::NumaTopology& topology) {
  if (!config.penstock.rank_nodes.empty()) return config.penstock.rank_nodes[local_rank];
  if (const auto node = topology.node_of_cpus(tiers::allowed_cpus())) return node;
  return topology.node(local_rank * topology.node_count() / local_ranks);
}

/// One number for each rank, if there are any. What Config::validate() cannot know.
Result<void> check_ranks(const Config& config, std::uint32_t ranks, std::uint32_t local_ranks) {
  if (local_ranks == 0 || ranks < local_ranks) {
    return Error::invalid_argument("plan_memory")
        .object("local_ranks")
        .wanted("from 1 to " + std::to_string(ranks) + ", all ranks")
        .got(local_ranks);
  }
  const std::size_t nodes = config.penstock.rank_nodes.size();
  if (nodes == 0 || nodes == local_ranks) return ok();
  return Error::invalid_config("plan_memory")
      .object("penstock.rank_nodes")
      .wanted(std::to_string(local_ranks) + ", one for each rank of this machine")
      .got(std::to_string(nodes) + " numbers");
}

}  // namespace

swap::RuntimeOptions MemoryPlan::runtime_options(const Config& config, std::uint32_t local_rank,
                                                 const tiers::NumaTopology& topology) const {
  swap::RuntimeOptions options{.host_budget = host_budget};
  options.pinning = config.pins_host_memory() ? tiers::Pinning::preferred : tiers::Pinning::none;
  options.eviction = config.penstock.eviction;
  options.lookahead = host_budget / 4;
  const auto& directories = config.swap_directories();
  if (swap_bytes.is_zero()) return options;
  options.swap_need = {.total = swap_bytes, .tensor_max = swap_tensor_max};
  const auto& weights = config.penstock.path_weights;
  for (const std::size_t i : tiers::paths_of_node(nodes_of_paths(config, directories, topology),
                                                  node_of_rank(config, local_rank, local_ranks, topology))) {
    options.paths.push_back({.directory = directories[i],
                             .weight = weights.empty() ? 0 : weights[i],
                             .request_max = config.aio_block_size,
                             .in_flight_max = config.aio_block_size * config.aio_queue_depth,
                             .deadline = std::chrono::seconds(config.penstock.io_deadline_seconds),
                             .engine = config.penstock.io_engine});
  }
  return options;
}

Result<MemoryPlan> plan_memory(const Config& config, const ModelLayout& model, std::uint32_t ranks,
                               std::uint32_t local_ranks) {
  PENSTOCK_TRY(config.validate());
  PENSTOCK_TRY(model.validate());
  PENSTOCK_TRY(check_ranks(config, ranks, local_ranks));
  const ElementCount tile = config.penstock.tile();
  const bool optimizer_on_disk = config.offload_optimizer.device == OffloadDevice::nvme;
  MemoryPlan plan;
  plan.shards_on_disk = config.offload_param.device == OffloadDevice::nvme;
  plan.local_ranks = local_ranks;

  const ShardLayout shards(model, ranks);
  ByteCount shard_bytes, gradient_bytes, tile_bytes_all, tile_largest, shard_largest, gradient_largest;
  for (const FlatLayout& flat : shards.flats()) {
    shard_bytes += padded(flat.shard, config.dtype);
    gradient_bytes += padded(flat.shard, config.grad_accum_dtype);
    shard_largest = std::max(shard_largest, padded(flat.shard, config.dtype));
    gradient_largest = std::max(gradient_largest, padded(flat.shard, config.grad_accum_dtype));
    for (const TileRange& range : cut_into_tiles(flat, tile)) {
      PENSTOCK_TRY_ASSIGN(auto bytes, cpu_adam::tile_bytes(config.penstock.state_format, range.count));
      tile_bytes_all += round_up(bytes, block);
      tile_largest = std::max(tile_largest, round_up(bytes, block));
      ++plan.tiles;
    }
  }

  const bool may_spill = plan.shards_on_disk || optimizer_on_disk;
  const StreamedSizes streamed{.tile = optimizer_on_disk ? tile_largest : ByteCount(),
                               .shard = plan.shards_on_disk ? shard_largest : ByteCount(),
                               .gradient = may_spill ? gradient_largest : ByteCount(),
                               .incoming = shard_largest};
  plan.host_staging = host_staging(streamed);
  const ByteCount ring =
      optimizer_on_disk ? tile_largest * tile_ring(config.penstock.tiles_in_flight) : ByteCount();
  const ByteCount resident =
      (plan.shards_on_disk ? ByteCount() : shard_bytes) + (optimizer_on_disk ? ByteCount() : tile_bytes_all);
  plan.host_minimum = plan.host_staging + resident + (may_spill ? ByteCount() : gradient_bytes);
  const ByteCount comfortable = plan.host_staging + ring + resident + gradient_bytes;
  plan.host_budget =
      config.penstock.host_budget.is_zero() ? comfortable : config.penstock.host_budget / local_ranks;
  plan.host_budget = ByteCount(plan.host_budget.value() / block.bytes() * block.bytes());
  if (plan.host_budget < plan.host_minimum) {
    return Error(ErrorCode::budget_too_small, "plan_memory")
        .reason("the host budget is too small to make progress")
        .where("penstock.host_budget")
        .wanted(plan.host_minimum * local_ranks)
        .got(plan.host_budget * local_ranks)
        .note("needed  staging " + to_string(plan.host_staging) + " and resident " +
              to_string(plan.host_minimum - plan.host_staging) + " for each of " +
              std::to_string(local_ranks) + " ranks")
        .advice("raise the budget, use smaller tiles or units, or offload more to nvme");
  }

  // Gradients first, since a spilled one is written and read; then parameter shards, which are read several
  // times a step; then tiles, which are read and written once.
  ByteCount left = plan.host_budget - plan.host_minimum;
  const auto take = [&left](ByteCount bytes) { return bytes <= left ? (left -= bytes, true) : false; };
  plan.gradients_on_disk = may_spill && !take(gradient_bytes);
  const bool shards_stay = plan.shards_on_disk && take(shard_bytes);
  if (optimizer_on_disk && !plan.gradients_on_disk && take(ring)) {
    plan.tiles_in_host = std::min<std::uint64_t>(left / tile_largest, plan.tiles);
  }
  const ByteCount fixed = resident + (plan.gradients_on_disk ? ByteCount() : gradient_bytes) +
                          (shards_stay ? shard_bytes : ByteCount()) + tile_largest * plan.tiles_in_host;
  if (optimizer_on_disk) {
    StreamedSizes sweep = streamed;
    if (!plan.gradients_on_disk) sweep.gradient = {};
    plan_read_ahead(plan, sweep, plan.host_budget - fixed, config.penstock.tiles_in_flight);
  }
  if (!optimizer_on_disk) plan.tiles_in_host = plan.tiles;

  ByteCount tiles_on_disk;
  std::uint64_t number = 0;
  for (const FlatLayout& flat : shards.flats()) {
    for (const TileRange& range : cut_into_tiles(flat, tile)) {
      if (!plan.in_host(number++))
        tiles_on_disk += round_up(*cpu_adam::tile_bytes(config.penstock.state_format, range.count), block);
    }
  }
  // What can go stays while there is room, so that these are bounds, not needs.
  plan.host_tiles = optimizer_on_disk ? tile_largest * plan.tiles_in_host + ring : tile_bytes_all;
  plan.host_shards = shard_bytes;
  plan.host_gradients = gradient_bytes;
  plan.disk_tiles = optimizer_on_disk ? tiles_on_disk : ByteCount();
  plan.disk_shards = plan.shards_on_disk ? shard_bytes : ByteCount();
  plan.disk_gradients = plan.gradients_on_disk ? gradient_bytes : ByteCount();
  plan.tile_reads = plan.tile_writes = plan.disk_tiles;
  plan.shard_writes = plan.disk_shards;
  plan.shard_reads_max = plan.disk_shards * 2;
  plan.update_shard_reads_max =
      cpu_adam::is_split(config.penstock.state_format) ? plan.disk_shards : ByteCount();
  plan.swap_tensor_max = std::max({streamed.tile, streamed.shard, streamed.gradient});
  plan.swap_bytes = plan.disk_shards + plan.disk_gradients + plan.disk_tiles;

  PENSTOCK_TRY(plan_device(plan, config, shards, model));
  // A gradient that lands has its full gradient on the device until it has; its shard is padded to a block.
  plan.host_incoming =
      std::min(shard_bytes, plan.device_gradients / ranks + ByteCount(block.bytes()) * shards.flats().size());
  for (ByteCount* bound : {&plan.host_tiles, &plan.host_shards, &plan.host_gradients, &plan.host_incoming}) {
    *bound = std::min(*bound, plan.host_budget);
  }
  return plan;
}

}  // namespace penstock::zero
