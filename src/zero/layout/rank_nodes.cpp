#include "zero/layout/rank_nodes.hpp"

#include <algorithm>

namespace penstock::zero {

std::vector<std::size_t> spread_over_nodes(std::uint32_t local_rank, std::uint32_t local_ranks,
                                           std::size_t nodes) {
  const std::size_t ranks = std::max(local_ranks, 1u), rank = std::min<std::size_t>(local_rank, ranks - 1);
  const std::size_t first = rank * nodes / ranks,
                    end = std::max((rank + 1) * nodes / ranks, std::min(first + 1, nodes));
  std::vector<std::size_t> own;
  for (std::size_t node = first; node < end; ++node) own.push_back(node);
  return own;
}

namespace {

/// One that is given is not 0, which would mean that none is.
ByteCount part_of(ByteCount budget, std::uint64_t ranks) {
  return budget.is_zero() ? budget : std::max(budget / ranks, ByteCount(1));
}

/// Precondition: the node of the rank has a budget.
ByteCount part_of_node_budget(const PenstockConfig& penstock, std::uint32_t local_rank) {
  const std::vector<std::uint32_t>& nodes = penstock.rank_nodes;
  const std::uint32_t node = nodes[local_rank];
  const auto ranks = static_cast<std::uint64_t>(std::count(nodes.begin(), nodes.end(), node));
  return part_of(penstock.node_budgets[node], ranks);
}

}  // namespace

ByteCount host_budget_of_rank(const Config& config, std::uint32_t local_ranks, std::uint32_t local_rank) {
  if (config.penstock.node_budgets.empty()) return part_of(config.penstock.host_budget, local_ranks);
  return part_of_node_budget(config.penstock, local_rank);
}

std::uint32_t rank_with_least_memory(const Config& config) {
  std::uint32_t least = 0;
  if (config.penstock.node_budgets.empty()) return least;
  const auto part = [&](std::uint32_t rank) { return part_of_node_budget(config.penstock, rank); };
  for (std::uint32_t rank = 1; rank < config.penstock.rank_nodes.size(); ++rank) {
    if (part(rank) < part(least)) least = rank;
  }
  return least;
}

bool parts_differ(const Config& config) {
  if (config.penstock.node_budgets.empty()) return false;
  const ByteCount first = part_of_node_budget(config.penstock, 0);
  for (std::uint32_t rank = 1; rank < config.penstock.rank_nodes.size(); ++rank) {
    if (part_of_node_budget(config.penstock, rank) != first) return true;
  }
  return false;
}

}  // namespace penstock::zero
