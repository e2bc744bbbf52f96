#pragma once

#include "swap/transfer/transfer_engine.hpp"
#include "zero/engine/engine_context.hpp"

namespace penstock::zero {

/// Which micro-batch of the step a reduced gradient is of.
struct Accumulation {
  bool first = true, last = true;
};

/// Reduce-scatter of the full gradient → copy of this rank's slot to host memory → added to the accumulator by a
/// worker. The first gradient is copied straight into the accumulator where both have one dtype.
///
/// Leases are taken by one such move at a time, in the order of the collectives, so that no move holds room while it
/// waits for another one's.
[[nodiscard]] swap::Move make_gradient_move(EngineContext& context, FlatState& flat, Accumulation how);

}  // namespace penstock::zero
