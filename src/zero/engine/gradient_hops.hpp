#pragma once

#include "swap/transfer/transfer_engine.hpp"
#include "zero/engine/engine_context.hpp"

namespace penstock::zero {

/// The position of a gradient's micro-batch in the step.
struct Accumulation {
  bool first = true, last = true;
};

/// A move of three hops: reduce-scatter of the full gradient, copy of this rank's slot to host memory, accumulation by
/// a worker. The device does the last two where it keeps the accumulator, and sums the squares of its last gradient.
/// The move is `ordered` once the copy is enqueued: after GradientFlat::copied_out the full gradient may be
/// written again. The first gradient is copied directly into the accumulator if both have the same dtype. Nothing is
/// copied if the rank shares memory with its device; a gradient in place is the accumulator. If a hop fails, it aborts
/// the communicator.
///
/// Such moves take their leases one after the other, in the order of the collectives, so that no move holds memory
/// while it waits for memory that another one holds.
[[nodiscard]] swap::Move make_gradient_move(EngineContext& context, FlatState& flat, Accumulation how);

}  // namespace penstock::zero
