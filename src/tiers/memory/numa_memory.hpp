#pragma once

#include <penstock/base/span.hpp>
#include <penstock/base/units.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace penstock::tiers {

/// Asks the kernel to take the pages of `range`, which is whole pages and is populated later, from these NUMA nodes: of
/// one node, from it while it has memory; of several, in turns. Returns why it refuses; nothing if it does not, or if
/// there are no nodes.
[[nodiscard]] std::string prefer_nodes(HostSpan range, std::span<const std::uint32_t> nodes);

/// The bytes of `range`, which is populated, that are on other nodes, as the first page of each `step` bytes tells;
/// nothing if the kernel does not tell.
[[nodiscard]] std::optional<ByteCount> bytes_elsewhere(ConstHostSpan range,
                                                       std::span<const std::uint32_t> nodes, ByteCount step);

/// The nodes in words: "NUMA node 1", "NUMA nodes 0 and 1".
[[nodiscard]] std::string nodes_text(std::span<const std::uint32_t> nodes);

}  // namespace penstock::tiers
