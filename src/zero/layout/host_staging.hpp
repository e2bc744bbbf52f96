#pragma once

#include <penstock/base/units.hpp>

#include <algorithm>
#include <cstdint>

namespace penstock::zero {

/// The largest tensor of each kind that is moved through host memory; zero for a kind that stays there.
struct StreamedSizes {
  ByteCount tile, shard, gradient;
  ByteCount incoming;  ///< of a reduced gradient, before it is added to the accumulator
  ByteCount checkpoint = {};
  ByteCount
      leases;  ///< of all shards that are leased as gathered flats: each with its lease_gap(); not the largest
};

/// The host memory that guarantees progress.
///
/// A range may be allocated anywhere, so that k leases can leave k + 1 gaps. One more range of size s is certain to fit
/// only if s × (k + 1) bytes are free beside the leases. These cases hold leases while they wait for another:
/// the update holds its shard and gradient and waits for a tile, or a gather waits for a shard meanwhile; accumulation
/// waits for the accumulator and holds the incoming gradient, or the reverse; a gather waits for a shard while
/// accumulation holds one of the two. All other leases end without waiting for memory, and nothing is accumulated
/// during an update. Shards that are leased as gathered flats (a rank that is alone, on host memory) may be held in all
/// of these cases. Each of them takes its bytes and leaves one more gap, into which the largest range that is waited
/// for may not fit: lease_gap(). A checkpoint may be waited for in all of these cases too; what holds one waits for
/// nothing else.
///
/// Example: tiles of 3 MiB, shards of 4 MiB, gradients of 8 MiB, incoming gradients of 4 MiB. The update holds shard
/// and gradient (12 MiB), which leave 3 gaps: 12 + 3 × 4 = 24 MiB, which is the maximum. Accumulation needs
/// 4 + 2 × 8 = 20 MiB.
inline ByteCount host_staging(const StreamedSizes& largest) {
  const auto& [tile, shard, gradient, incoming, checkpoint, leases] = largest;
  return leases + std::max({shard + gradient + std::max({tile, shard, checkpoint}) * 3,
                            incoming + std::max(gradient, checkpoint) * 2,
                            gradient + std::max(incoming, checkpoint) * 2});
}

/// The host memory that a lease of a gathered flat may make unusable, beside its own bytes.
inline ByteCount lease_gap(const StreamedSizes& largest) {
  return std::max({largest.tile, largest.shard, largest.gradient, largest.incoming, largest.checkpoint});
}

/// Maximum number of tiles in memory: those prefetched, being updated, and being written. An update ends with as many
/// more being written as it has updated at a time; meanwhile the next step reads ahead, for the start of its update, as
/// many more. Example: 4 in flight and 1 being updated need 2 × (4 + 1) = 10.
constexpr std::uint64_t tile_ring(std::uint32_t tiles_in_flight, std::uint32_t updating) {
  return 2 * (std::uint64_t{tiles_in_flight} + updating);
}

}  // namespace penstock::zero
