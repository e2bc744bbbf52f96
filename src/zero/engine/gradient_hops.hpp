#pragma once

#include "swap/transfer/transfer_engine.hpp"
#include "zero/engine/engine_context.hpp"

#include <span>
#include <vector>

namespace penstock::zero {

/// The position of a gradient's micro-batch in the step.
struct Accumulation {
  bool first = true, last = true;
};

/// A flat whose full gradient is written.
struct WrittenGradient {
  FlatState* flat = nullptr;
  Accumulation how;
};

/// A move for each flat of a bucket, of three hops: reduce-scatter of the full gradients, which is one for the bucket,
/// copy of this rank's slot to host memory, accumulation by a worker. The device does the last two where it keeps the
/// accumulator, and sums the squares of its last gradient. A move is `ordered` once the copy is enqueued: after
/// GradientFlat::copied_out the full gradient may be written again. The first gradient is copied directly into the
/// accumulator if both have the same dtype. Nothing is copied if the rank shares memory with its device; a gradient in
/// place is the accumulator. If a hop fails, it aborts the communicator.
///
/// Such moves take their leases one after the other, in the order of the collectives, so that no move holds memory
/// while it waits for memory that another one holds.
[[nodiscard]] std::vector<swap::Move> make_gradient_moves(EngineContext& context,
                                                          std::span<const WrittenGradient> bucket,
                                                          const CollectiveSignature& signature);

}  // namespace penstock::zero
