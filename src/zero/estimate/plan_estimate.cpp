#include "zero/estimate/plan_estimate.hpp"

#include "tiers/memory/numa.hpp"
#include "zero/layout/device_plan.hpp"
#include "zero/layout/padded.hpp"
#include "zero/layout/rank_nodes.hpp"
#include "zero/layout/shard_layout.hpp"
#include "zero/layout/tiles.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace penstock::zero::estimate {

namespace {

using tiers::Tier;
using Line = PlanEstimate::Line;
using Link = PlanEstimate::Link;

/// Collects the lines of one tier.
class Lines {
 public:
  Lines(std::vector<Line>& lines, Tier tier) : lines_(lines), tier_(tier) {}
  void allocated(std::string_view what, ByteCount bytes) { add(what, true, bytes); }
  void at_most(std::string_view what, ByteCount bytes) { add(what, false, bytes); }

 private:
  void add(std::string_view what, bool allocated, ByteCount bytes) {
    lines_.push_back({.tier = tier_, .what = what, .allocated = allocated, .per_rank = bytes});
  }
  std::vector<Line>& lines_;
  Tier tier_;
};

/// The bytes of all shards of a rank, in the type of parameters.
ByteCount shard_bytes(const ShardLayout& shards, DType dtype) {
  ByteCount bytes;
  for (const FlatLayout& flat : shards.flats()) bytes += padded(flat.shard, dtype);
  return bytes;
}

void add_device_lines(PlanEstimate& estimate, const Config& config, const ShardLayout& shards) {
  const MemoryPlan& plan = estimate.plan;
  const ResidencyLimits limits = limits_of(plan, config, shards);
  const auto bytes_of = [&](ElementCount elements, ByteCount most) {
    return elements >= ModelLayout::model_elements_max
               ? most
               : std::min(size_of(config.dtype) * elements.value(), most);
  };
  Lines lines(estimate.lines, Tier::device);
  lines.allocated("pool of gathered units and full gradients", plan.device_flats());
  lines.at_most("gathered units", plan.device_gathered);
  lines.at_most("gathered ahead of their use", bytes_of(limits.prefetch, plan.device_gathered));
  lines.at_most("full gradients", plan.device_gradients);
  lines.at_most("in the bucket of a reduction", bytes_of(limits.reduce_bucket, plan.device_gradients));
  lines.allocated("optimizer states", plan.device_tiles);
  lines.allocated("slots of the device's update", plan.update.device_bytes());
  lines.allocated("parameter shards", plan.device_shards);
  lines.allocated("accumulated gradients", plan.device_accumulators);
  lines.allocated("sums of squares", plan.device_partials);
  lines.allocated("slots of an exact reduction", plan.device_collectives);
  lines.allocated("checkpoints", plan.checkpoints.device_bytes());
}

void add_host_lines(PlanEstimate& estimate) {
  const MemoryPlan& plan = estimate.plan;
  Lines lines(estimate.lines, Tier::host);
  lines.allocated("parameter shards", plan.host_shards);
  lines.allocated("accumulated gradients", plan.host_gradients);
  lines.allocated("optimizer tiles", plan.host_tiles);
  lines.allocated("checkpoints", plan.host_checkpoints);
  lines.allocated("results of the device", plan.host_results - plan.host_matrix);
  lines.allocated("Muon's largest matrix and its products", plan.host_matrix);
  lines.allocated("parameter shards at home", plan.home_shards);
  lines.allocated("optimizer tiles at home", plan.home_tiles);
  lines.allocated("staging, and copies of what is on disk", plan.host_staging() - plan.homes());
  lines.allocated("rounding to whole pages", plan.host_allocated() - plan.host_budget);
}

void add_disk_lines(PlanEstimate& estimate) {
  const MemoryPlan& plan = estimate.plan;
  Lines lines(estimate.lines, Tier::nvme);
  lines.allocated("parameter shards", plan.disk_shards);
  lines.allocated("accumulated gradients", plan.disk_gradients);
  lines.allocated("optimizer tiles", plan.disk_tiles);
  lines.allocated("checkpoints", plan.disk_checkpoints);
  lines.allocated("last commit, of these", plan.swap_committed);
  lines.allocated("two commits, of what is in memory", plan.committed_copies * 2);
}

/// Collects what moves over one link.
class Moves {
 public:
  Moves(PlanEstimate& estimate, Link link) : estimate_(estimate), link_(link) {}
  void add(std::string_view what, ByteCount in, ByteCount out) {
    estimate_.traffic.push_back({.link = link_, .what = what, .in = in, .out = out});
  }

 private:
  PlanEstimate& estimate_;
  Link link_;
};

void add_disk_traffic(PlanEstimate& estimate) {
  const MemoryPlan& plan = estimate.plan;
  const std::uint64_t times = estimate.micro_batches;
  Moves moves(estimate, Link::nvme);
  moves.add("parameter shards", plan.shard_reads_max * times + plan.update_shard_reads_max,
            plan.shard_writes);
  moves.add("accumulated gradients", plan.gradient_reads_max * times, plan.gradient_writes_max * times);
  moves.add("optimizer tiles", plan.tile_reads + plan.tile_rereads_max, plan.tile_writes);
  moves.add("checkpoints", plan.checkpoint_reads_max * times, plan.checkpoint_writes_max * times);
}

/// The elements of the tiles that the device updates, or may update.
struct UpdatedByDevice {
  ElementCount streamed, kept;
};
UpdatedByDevice updated_by_device(const MemoryPlan& plan, const ShardLayout& shards) {
  UpdatedByDevice updated;
  std::uint64_t number = 0;
  for (const FlatLayout& flat : shards.flats()) {
    for (const TileRange& range : cut_into_tiles(flat, plan.tile_elements)) {
      const std::uint64_t tile = number++;
      if (plan.updated_on_device(tile))
        (plan.tile_kept(tile) ? updated.kept : updated.streamed) += range.count;
    }
  }
  return updated;
}

/// What crosses between host memory and a device with memory of its own.
void add_device_traffic(PlanEstimate& estimate, const Config& config, const ModelLayout& layout,
                        const ShardLayout& shards) {
  if (estimate.run.device_memory == tiers::DeviceMemory::host) return;
  const MemoryPlan& plan = estimate.plan;
  const std::uint64_t times = estimate.micro_batches;
  const ByteCount all = shard_bytes(shards, config.dtype);
  Moves moves(estimate, Link::device);
  // At stage 3 a unit is gathered for the forward and for the backward, else once a step.
  const std::uint64_t gathers = config.shards_parameters() ? 2 * times : 1;
  if (!plan.shards_on_device) {
    moves.add("parameter shards", all * gathers, plan.gradients_on_device ? all : ByteCount());
  }
  if (!plan.gradients_on_device) {
    moves.add("reduced gradients", {}, all * times);
    const UpdatedByDevice updated = updated_by_device(plan, shards);
    const bool reads = cpu_adam::shares_parameter(tile_layout(config).format);
    const auto add = [&](std::string_view what, ByteCount states, ElementCount elements) {
      const ByteCount gradients = size_of(config.grad_accum_dtype) * elements.value(),
                      parameters = size_of(config.dtype) * elements.value();
      moves.add(what, states + gradients + (reads ? parameters : ByteCount()), states + parameters);
    };
    add("tiles that the device updates", plan.update.streamed, updated.streamed);
    add("gradients and parameters of states on the device", {}, updated.kept);
  }
  if (plan.checkpoints.leave_device()) {
    const ByteCount checkpoints = plan.checkpoints.size * plan.checkpoints.count * times;
    moves.add("checkpoints", checkpoints * layout.checkpoints.reads, checkpoints);
  }
}

/// The directories that each rank of a node uses, by index.
std::vector<std::vector<std::size_t>> paths_of_ranks(const Config& config, const RunShape& run,
                                                     std::size_t directories) {
  std::vector<std::size_t> all(directories);
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::vector<std::vector<std::size_t>> paths(run.ranks_per_node, all);
  const auto& given = config.penstock.path_nodes;
  const auto& rank_nodes = config.penstock.rank_nodes;
  if (given.size() != directories || rank_nodes.size() != run.ranks_per_node) return paths;
  const std::vector<std::optional<std::uint32_t>> nodes(given.begin(), given.end());
  for (std::size_t rank = 0; rank < paths.size(); ++rank) {
    paths[rank] = tiers::paths_of_nodes(nodes, std::span(&rank_nodes[rank], 1));
  }
  return paths;
}

using Traffic = PlanEstimate::Traffic;
/// Over the drives.
ByteCount sum_of(const PlanEstimate& estimate, ByteCount Traffic::*which) {
  ByteCount total;
  for (const Traffic& moved : estimate.traffic) {
    if (moved.link == Link::nvme) total += moved.*which;
  }
  return total;
}

ByteCount sum_of(const PlanEstimate& estimate, Tier tier, ByteCount Line::*which) {
  ByteCount total;
  for (const Line& line : estimate.lines) {
    if (line.tier == tier && line.allocated) total += line.*which;
  }
  return total;
}

ByteCount rounded(double bytes) {
  return ByteCount(static_cast<std::uint64_t>(std::llround(bytes)));
}
double number(ByteCount bytes) {
  return static_cast<double>(bytes.value());
}

/// Ranks of a node that have one plan.
struct EqualRanks {
  PlanEstimate estimate;  // what is per rank of it
  std::vector<std::uint32_t> local_ranks;
};

/// Divides the swap files and the traffic of a node's ranks among the directories, by their weights.
void add_paths(PlanEstimate& node, const Config& config, std::span<const EqualRanks> all) {
  const auto& directories = config.swap_directories();
  const auto has_none = [](const EqualRanks& equal) { return equal.estimate.plan.swap_bytes.is_zero(); };
  if (std::all_of(all.begin(), all.end(), has_none) || directories.empty()) return;
  std::vector<double> weights = config.penstock.path_weights;
  node.shares_are_given = directories.size() == 1 || weights.size() == directories.size();
  if (weights.size() != directories.size()) weights.assign(directories.size(), 1.0);
  struct Moved {
    double swap = 0, read = 0, written = 0;
  };
  std::vector<Moved> of_paths(directories.size());
  const auto of_ranks = paths_of_ranks(config, node.run, directories.size());
  for (const auto& [estimate, local_ranks] : all) {
    const double swap = number(estimate.per_rank(Tier::nvme)), read = number(sum_of(estimate, &Traffic::in)),
                 written = number(sum_of(estimate, &Traffic::out));
    for (const std::uint32_t rank : local_ranks) {
      double sum = 0;
      for (const std::size_t path : of_ranks[rank]) sum += weights[path];
      for (const std::size_t path : of_ranks[rank]) {
        const double share = weights[path] / sum;
        of_paths[path].swap += swap * share;
        of_paths[path].read += read * share;
        of_paths[path].written += written * share;
      }
    }
  }
  for (std::size_t i = 0; i < directories.size(); ++i) {
    const auto& [swap, read, written] = of_paths[i];
    node.paths.push_back({.directory = directories[i],
                          .share = swap / number(node.per_node(Tier::nvme)),
                          .swap_bytes = rounded(swap),
                          .read = rounded(read),
                          .written = rounded(written)});
  }
}

void add_locked_memory(PlanEstimate& node, const Config& config, std::span<const EqualRanks> all) {
  for (const EqualRanks& equal : all) {
    if (config.pins_host_memory()) node.pinned = std::max(node.pinned, equal.estimate.plan.host_allocated());
  }
  const bool registers = config.penstock.io_engine == tiers::EngineChoice::automatic ||
                         config.penstock.io_engine == tiers::EngineChoice::io_uring;
  if (!registers || node.paths.empty()) return;
  const auto of_ranks = paths_of_ranks(config, node.run, node.paths.size());
  for (const auto& [estimate, local_ranks] : all) {
    for (const std::uint32_t rank : local_ranks)
      node.registered += estimate.plan.host_allocated() * of_ranks[rank].size();
  }
}

}  // namespace

ByteCount PlanEstimate::per_rank(Tier tier) const {
  return sum_of(*this, tier, &Line::per_rank);
}

ByteCount PlanEstimate::per_node(Tier tier) const {
  return sum_of(*this, tier, &Line::per_node);
}

ByteCount PlanEstimate::moved(Link link) const {
  ByteCount total;
  for (const Traffic& one : traffic) {
    if (one.link == link) total += one.in + one.out;
  }
  return total;
}

ByteCount PlanEstimate::read_per_node() const {
  return sum_of(*this, &Traffic::node_in);
}

ByteCount PlanEstimate::written_per_node() const {
  return sum_of(*this, &Traffic::node_out);
}

namespace {

/// What is per rank, with all lines and moves, those of zero bytes too: so each rank of a node has the same ones.
PlanEstimate estimate_rank(const Config& config, const ModelLayout& layout, const RunShape& run,
                           MemoryPlan plan) {
  PlanEstimate estimate{.run = run, .plan = std::move(plan)};
  const ShardLayout shards(layout, run.ranks());
  estimate.parameters = layout.element_count();
  estimate.micro_batches = config.gradient_accumulation_steps;
  add_device_lines(estimate, config, shards);
  add_host_lines(estimate);
  add_disk_lines(estimate);
  add_disk_traffic(estimate);
  add_device_traffic(estimate, config, layout, shards);
  return estimate;
}

/// Of all ranks of a node; first those with the least memory.
Result<std::vector<EqualRanks>> plan_ranks(const Config& config, const ModelLayout& layout,
                                           const RunShape& run) {
  std::vector<EqualRanks> all;
  const auto plan_rank = [&](std::optional<std::uint32_t> local_rank) -> Result<void> {
    PENSTOCK_TRY_ASSIGN(MemoryPlan plan, plan_memory(config, layout, run.ranks(), run.ranks_per_node,
                                                     run.device_memory, local_rank));
    all.push_back({estimate_rank(config, layout, run, std::move(plan)), {}});
    return ok();
  };
  PENSTOCK_TRY(plan_rank(std::nullopt));
  for (std::uint32_t rank = 0; rank < run.ranks_per_node; ++rank) {
    const auto has_its_part = [&](const EqualRanks& equal) {
      const std::uint32_t other = equal.estimate.plan.planned_local_rank;
      return host_budget_of_rank(config, run.ranks_per_node, rank) ==
             host_budget_of_rank(config, run.ranks_per_node, other);
    };
    auto equal = std::find_if(all.begin(), all.end(), has_its_part);
    if (equal == all.end()) {
      PENSTOCK_TRY(plan_rank(rank));
      equal = std::prev(all.end());
    }
    equal->local_ranks.push_back(rank);
  }
  return all;
}

}  // namespace

Result<PlanEstimate> estimate_plan(const Config& config, const ModelLayout& layout, const RunShape& run) {
  PENSTOCK_TRY_ASSIGN(const std::vector<EqualRanks> all, plan_ranks(config, layout, run));
  PlanEstimate node = all.front().estimate;
  node.budgets_differ = all.size() > 1;
  for (const auto& [estimate, local_ranks] : all) {
    const std::uint64_t count = local_ranks.size();
    for (std::size_t i = 0; i < node.lines.size(); ++i)
      node.lines[i].per_node += estimate.lines[i].per_rank * count;
    for (std::size_t i = 0; i < node.traffic.size(); ++i) {
      node.traffic[i].node_in += estimate.traffic[i].in * count;
      node.traffic[i].node_out += estimate.traffic[i].out * count;
    }
  }
  std::erase_if(node.lines, [](const Line& line) { return line.per_node.is_zero(); });
  std::erase_if(node.traffic,
                [](const Traffic& moved) { return moved.node_in.is_zero() && moved.node_out.is_zero(); });
  add_paths(node, config, all);
  add_locked_memory(node, config, all);
  return node;
}

std::optional<std::uint64_t> steps_to_endurance(double endurance_bytes, ByteCount written) {
  if (written.is_zero()) return std::nullopt;
  const double steps = endurance_bytes / static_cast<double>(written.value());
  return steps < 0x1p63 ? static_cast<std::uint64_t>(steps) : std::uint64_t{1} << 63;
}

Result<DeepSpeedComparison> compare_deepspeed(const Config& config, const NamedModel& model,
                                              const RunShape& run) {
  DeepSpeedComparison comparison{.stage = config.shards_parameters() ? 3u : 2u};
  const DeepSpeedEstimateOptions options{.total_params = model.layout.element_count(),
                                         .largest_layer_params = model.largest_module(),
                                         .gpus_per_node = run.ranks_per_node,
                                         .nodes = run.nodes};
  PENSTOCK_TRY_ASSIGN(const auto rows, deepspeed_estimate(comparison.stage, options));
  const bool optimizer = config.offload_optimizer.device != OffloadDevice::none;
  // DeepSpeed offloads parameters only where it offloads the optimizer.
  const bool parameters = optimizer && config.offload_param.device != OffloadDevice::none;
  const auto device = [](bool offloads) { return offloads ? OffloadDevice::cpu : OffloadDevice::none; };
  for (const DeepSpeedEstimateRow& row : rows) {
    const bool is_nearest =
        row.offload_optimizer == device(optimizer) &&
        (comparison.stage == 2 || (row.zero_init && row.offload_param == device(parameters)));
    if (is_nearest) return comparison.row = row, comparison;
  }
  return comparison;
}

}  // namespace penstock::zero::estimate
