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

ByteCount host_budget_of_rank(const Config& config, std::uint32_t local_ranks) {
  const std::vector<ByteCount>& budgets = config.penstock.node_budgets;
  if (budgets.empty()) return config.penstock.host_budget / local_ranks;
  const std::vector<std::uint32_t>& given = config.penstock.rank_nodes;
  std::vector<std::vector<std::size_t>> nodes;
  std::vector<std::uint64_t> ranks_on(budgets.size());
  for (std::uint32_t rank = 0; rank < local_ranks; ++rank) {
    nodes.push_back(given.empty() ? spread_over_nodes(rank, local_ranks, budgets.size())
                                  : std::vector<std::size_t>{given[rank]});
    for (const std::size_t node : nodes.back()) ++ranks_on[node];
  }
  ByteCount least(~std::uint64_t{0});
  for (const auto& of_rank : nodes) {
    ByteCount part;
    for (const std::size_t node : of_rank) part += budgets[node] / ranks_on[node];
    least = std::min(least, part);
  }
  return least;
}

}  // namespace penstock::zero
