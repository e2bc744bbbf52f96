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
}  // namespace

ByteCount host_budget_of_rank(const Config& config, std::uint32_t local_ranks) {
  const std::vector<ByteCount>& budgets = config.penstock.node_budgets;
  const std::vector<std::uint32_t>& nodes = config.penstock.rank_nodes;
  if (budgets.empty()) return part_of(config.penstock.host_budget, local_ranks);
  ByteCount least(~std::uint64_t{0});
  for (const std::uint32_t node : nodes) {
    const auto ranks = static_cast<std::uint64_t>(std::count(nodes.begin(), nodes.end(), node));
    least = std::min(least, part_of(budgets[node], ranks));
  }
  return least;
}

}  // namespace penstock::zero
