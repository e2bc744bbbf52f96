#pragma once

#include <penstock/parallel/workers.hpp>
#include "kernels/host_gradient.hpp"

#include <span>

namespace penstock::zero {

/// Writes or adds `shard`, the gradient of one micro-batch, to its accumulator with all workers. Computes
/// kernels::square_sums() of the accumulator, if `square_partials` is not empty, while each piece is in cache. If
/// `shard.incoming` is empty, the accumulator has the gradient already. The bits do not depend on the workers.
///
/// Errors: those of the kernels.
Result<void> accumulate_shard(const kernels::GradientPiece& shard, kernels::GradientWrite write,
                              std::span<double> square_partials, parallel::Workers& workers);

}  // namespace penstock::zero
