#include "tiers/io/bounded_call.hpp"
#include "tiers/memory/numa.hpp"
#include "zero/layout/host_staging.hpp"
#include "zero/layout/path_options.hpp"
#include "zero/layout/rank_nodes.hpp"
#include "zero/layout/runtime_use.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <algorithm>
#include <chrono>

namespace penstock::zero {

namespace {

/// None if the node is unknown, and for a directory that does not answer: Runtime::create() will report that.
std::optional<std::uint32_t> node_of_path(const std::filesystem::path& directory,
                                          const tiers::NumaTopology& topology, TimePoint deadline) {
  const auto find = [=]() -> Result<std::optional<std::uint32_t>> {
    return topology.node_of_directory(directory);
  };
  const auto node = tiers::bounded_call<std::optional<std::uint32_t>>("MemoryPlan::runtime_options",
                                                                      directory.string(), deadline, find);
  return node ? *node : std::nullopt;
}

std::vector<std::optional<std::uint32_t>> nodes_of_paths(const Config& config,
                                                         std::span<const std::filesystem::path> directories,
                                                         const tiers::NumaTopology& topology) {
  const auto& given = config.penstock.path_nodes;
  std::vector<std::optional<std::uint32_t>> nodes(given.begin(), given.end());
  if (given.size() == directories.size()) return nodes;
  nodes.clear();
  for (const auto& directory : directories) {
    nodes.push_back(
        node_of_path(directory, topology, std::chrono::seconds(config.penstock.io_deadline_seconds)));
  }
  return nodes;
}

/// That of its cores; none, if they are on several, or where it is given.
std::optional<std::uint32_t> bound_node(const Config& config, std::uint32_t local_rank,
                                        const tiers::NumaTopology& topology) {
  if (local_rank < config.penstock.rank_nodes.size()) return std::nullopt;
  return topology.node_of_cpus(tiers::allowed_cpus());
}

/// None if no nodes are known. Where they are not given, ranks are spread evenly over the nodes.
std::vector<std::uint32_t> nodes_of_rank(const Config& config, std::uint32_t local_rank,
                                         std::uint32_t local_ranks, const tiers::NumaTopology& topology) {
  const auto& given = config.penstock.rank_nodes;
  if (local_rank < given.size()) return {given[local_rank]};
  std::vector<std::uint32_t> nodes;
  for (const std::size_t index : spread_over_nodes(local_rank, local_ranks, topology.node_count())) {
    if (const auto node = topology.node(index)) nodes.push_back(*node);
  }
  return nodes;
}

}  // namespace

swap::RuntimeOptions MemoryPlan::runtime_options(const Config& config, std::uint32_t local_rank) const {
  return runtime_options(config, local_rank, tiers::NumaTopology::read());
}

swap::RuntimeOptions MemoryPlan::runtime_options(const Config& config, std::uint32_t local_rank,
                                                 const tiers::NumaTopology& topology) const {
  swap::RuntimeOptions options{.host_budget = host_budget};
  options.pinning = config.pins_host_memory() ? tiers::Pinning::preferred : tiers::Pinning::none;
  options.eviction = config.penstock.eviction;
  // Of the parameters, this rank has shards.
  const auto reuse_distance = bytes_of(config.max_reuse_distance, config.dtype);
  options.reuse_distance_max = (reuse_distance ? *reuse_distance : ByteCount(~std::uint64_t{0})) / ranks;
  options.lookahead = host_budget / 4;
  const auto spread = nodes_of_rank(config, local_rank, local_ranks, topology);
  const auto bound = bound_node(config, local_rank, topology);
  const auto own = bound ? std::vector{*bound} : spread;
  const bool is_given = local_rank < config.penstock.rank_nodes.size();
  if (is_given || topology.node_count() > 1) options.memory_nodes = own;
  const auto& directories = config.swap_directories();
  if (swap_bytes.is_zero()) return options;
  options.swap_need = {.total = swap_bytes, .tensor_max = swap_tensor_max};
  const auto& weights = config.penstock.path_weights;
  const auto nodes = nodes_of_paths(config, directories, topology);
  const std::uint32_t ranks_here = std::max(local_ranks, 1u);
  // Of ranks that are bound otherwise than evenly, all may use this rank's paths.
  std::vector<std::uint64_t> ranks_of_path(directories.size(), own == spread ? 0 : ranks_here);
  for (std::uint32_t rank = 0; own == spread && rank < ranks_here; ++rank) {
    for (const std::size_t path :
         tiers::paths_of_nodes(nodes, nodes_of_rank(config, rank, local_ranks, topology)))
      ++ranks_of_path[path];
  }
  for (const std::size_t i : tiers::paths_of_nodes(nodes, own)) {
    swap::PathOptions path =
        path_options(config, directories[i], weights.size() == directories.size() ? weights[i] : 0);
    const std::uint64_t users = std::max<std::uint64_t>(ranks_of_path[i], 1);
    if (const auto& limits = config.penstock.path_limits; limits.size() == directories.size())
      path.rate_limit = limits[i] / static_cast<double>(users);
    if (const auto& endurance = config.penstock.path_endurance; endurance.size() == directories.size())
      path.endurance = endurance[i] / users;
    options.paths.push_back(std::move(path));
  }
  return options;
}

Result<swap::RuntimeOptions> shared_runtime_options(std::span<const PlannedEngine> engines,
                                                    std::uint32_t local_rank) {
  if (engines.empty() || std::any_of(engines.begin(), engines.end(), [](const PlannedEngine& engine) {
        return engine.config == nullptr || engine.plan == nullptr;
      })) {
    return Error::invalid_argument("shared_runtime_options")
        .object("engines")
        .wanted("one engine or more, each with its config and plan");
  }
  for (const PlannedEngine& engine : engines) {
    const auto part = [&](std::uint32_t rank) {
      return host_budget_of_rank(*engine.config, engine.plan->local_ranks, rank);
    };
    const bool is_rank = local_rank < engine.config->penstock.rank_nodes.size();
    if (!parts_differ(*engine.config)) continue;
    if (is_rank && part(engine.plan->planned_local_rank) == part(local_rank)) continue;
    return Error::invalid_argument("shared_runtime_options")
        .object("plan")
        .reason("penstock.node_budgets give the ranks of a machine different memory")
        .wanted("the plan of rank " + std::to_string(local_rank) + " of the machine")
        .got("that of rank " + std::to_string(engine.plan->planned_local_rank))
        .advice("pass the rank to plan_memory(), as its last argument");
  }
  const PlannedEngine* settings = &engines.front();
  std::vector<swap::RuntimeUse> uses;
  MemoryPlan all;
  bool pins = false;
  for (const PlannedEngine& engine : engines) {
    const MemoryPlan& plan = *engine.plan;
    uses.push_back(runtime_use(plan, static_cast<std::uint32_t>(uses.size())));
    pins = pins || engine.config->pins_host_memory();
    all.ranks = plan.ranks;
    all.local_ranks = plan.local_ranks;
    all.swap_bytes += plan.swap_bytes;
    all.swap_tensor_max = std::max(all.swap_tensor_max, plan.swap_tensor_max);
    if (plan.swap_bytes.is_zero()) continue;
    if (settings->plan->swap_bytes.is_zero()) settings = &engine;
    if (engine.config->swap_directories() == settings->config->swap_directories()) continue;
    return Error::invalid_config("shared_runtime_options")
        .object("nvme_path")
        .reason(
            "engines of one rank share its swap files, and their configurations name different directories")
        .wanted(settings->config->swap_directories().front().string())
        .got(engine.config->swap_directories().front().string())
        .advice("give all of them the same nvme_path");
  }
  all.host_budget = host_memory(uses);
  swap::RuntimeOptions options = all.runtime_options(*settings->config, local_rank);
  options.pinning = pins ? tiers::Pinning::preferred : tiers::Pinning::none;
  return options;
}

}  // namespace penstock::zero
