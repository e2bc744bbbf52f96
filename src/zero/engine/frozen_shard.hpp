#pragma once

#include "zero/engine/offloaded_optimizer.hpp"

namespace penstock::zero {

// The values of a frozen flat's shard: it has no tiles, and its elements in the parameters' dtype are all there is.
// Used by the trainer's thread; both functions block.

/// Writes `shard`, that of `rank`'s slice, from the masters of `source`, rounded to nearest.
///
/// Errors: those of `source` and of the device.
Result<void> restore_frozen(const OffloadedOptimizer::Options& options, FlatState& flat, std::uint32_t rank,
                            const OffloadedOptimizer::StateSource& source, HostView& shard);
/// Calls `visit` with the shard's elements in order, as masters. An error of `visit` ends it.
Result<void> visit_frozen(const OffloadedOptimizer::Options& options, const FlatState& flat,
                          const OffloadedOptimizer::StateVisitor& visit);

}  // namespace penstock::zero
