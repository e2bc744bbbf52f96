#pragma once

#include <penstock/base/units.hpp>

#include <algorithm>
#include <cstdint>

namespace penstock::zero {

/// The largest of each kind that moves through host memory; zero where it stays there.
struct StreamedSizes {
  ByteCount tile, shard, gradient;
  ByteCount incoming;  ///< of a reduced gradient, before it is added to the accumulator
};

/// Host memory without which a run might make no progress.
///
/// A range of memory is taken wherever it fits, so that k leases can cut the rest into k + 1 gaps, and one more range
/// is certain to fit only where its size times k + 1 is left beside them. The cases: a tile while the sweep holds its
/// shard and gradient; the accumulator while the incoming gradient is held, or the other way round; a shard to be
/// gathered while one of those is held. Every other lease ends by itself.
///
/// Example: tiles of 3 MiB, shards of 8 MiB, gradients of 16 MiB, incoming gradients of 8 MiB. The sweep holds shard
/// and gradient (24 MiB), which leave 3 gaps: 24 + 3 x 3 = 33 MiB. Accumulating needs 8 + 2 x 16 = 40 MiB, the most.
inline ByteCount host_staging(const StreamedSizes& largest) {
  const auto& [tile, shard, gradient, incoming] = largest;
  return std::max(
      {shard + gradient + tile * 3, incoming + gradient * 2, gradient + incoming * 2, gradient + shard * 2});
}

/// Tiles in memory at most: those read ahead, the one being updated, those being written, and the one that joins
/// them. Example: 4 in flight need 4 + 1 + 4 + 1 = 10.
constexpr std::uint64_t tile_ring(std::uint32_t tiles_in_flight) {
  return 2 * std::uint64_t{tiles_in_flight} + 2;
}

}  // namespace penstock::zero
