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

/// The host memory of a rank: its part of penstock.host_budget, or of the budget of its node in rank_nodes. All ranks
/// have that of the rank whose part is the smallest, because they have one plan. Zero if none is configured.
/// Precondition: Config::validate() has succeeded.
[[nodiscard]] ByteCount host_budget_of_rank(const Config& config, std::uint32_t local_ranks);

}  // namespace penstock::zero
