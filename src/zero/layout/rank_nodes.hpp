#pragma once

#include <penstock/base/units.hpp>
#include <penstock/zero/config/config.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock::zero {

/// Which of `nodes` NUMA nodes, by index, ranks of a machine have that are not bound otherwise: each rank one, evenly,
/// or several, if there are more nodes than ranks. In ascending order.
[[nodiscard]] std::vector<std::size_t> spread_over_nodes(std::uint32_t local_rank, std::uint32_t local_ranks,
                                                         std::size_t nodes);

/// The host memory of rank `local_rank` of a machine: its part of penstock.host_budget, or of the budget of its node in
/// rank_nodes. Zero if none is configured.
/// Preconditions: Config::validate() has succeeded; with node_budgets, rank_nodes names the rank's node.
[[nodiscard]] ByteCount host_budget_of_rank(const Config& config, std::uint32_t local_ranks,
                                            std::uint32_t local_rank);
/// The first of a machine's ranks whose part is the smallest. What all ranks must plan alike is planned for it.
[[nodiscard]] std::uint32_t rank_with_least_memory(const Config& config);
/// Whether ranks of a machine have different parts.
[[nodiscard]] bool parts_differ(const Config& config);

}  // namespace penstock::zero
