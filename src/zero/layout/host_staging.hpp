#pragma once

#include <penstock/base/units.hpp>

#include <algorithm>
#include <cstdint>

namespace penstock::zero {

/// The largest of each kind that moves through host memory; zero where it stays there.
struct StreamedSizes {
  ByteCount tile, shard, gradient;
  ByteCount incoming;  ///< of a reduced gradient that lands
};

/// Host memory without which a run might make no progress.
///
/// What has no place of its own goes wherever it fits, so that k leases that stand in the way can cut the rest
/// into k + 1 gaps, and a need is certain of one only where its size times k + 1 is left beside them. The needs:
/// a tile while the sweep holds its shard and gradient; either half of a gradient's landing while the other is
/// held; a shard to be gathered while one of those is. Every other lease ends by itself.
inline ByteCount host_staging(const StreamedSizes& largest) {
  const auto& [tile, shard, gradient, incoming] = largest;
  return std::max(
      {shard + gradient + tile * 3, incoming + gradient * 2, gradient + incoming * 2, gradient + shard * 2});
}

/// Tiles read ahead, the one being updated, tiles being written, and the one that joins them.
constexpr std::uint64_t tile_ring(std::uint32_t tiles_in_flight) {
  return 2 * std::uint64_t{tiles_in_flight} + 2;
}

}  // namespace penstock::zero
