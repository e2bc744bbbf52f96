#pragma once

#include <penstock/base/dtype.hpp>
#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/parallel/workers.hpp>

namespace penstock::cpu_adam {

/// The sum of the squares of a gradient's elements; the norm is its root. In double precision: the partial sums of
/// Compute::square_sums(), added by sum_tree(), as an engine does for a shard. The bits are equal for every number of
/// threads. Not finite exactly when an element is not.
///
/// `workers`: null runs on the calling thread.
/// Errors: invalid_argument, for a gradient that is misaligned or not a whole number of elements.
[[nodiscard]] Result<double> square_sum(ConstHostSpan gradient, DType dtype,
                                        parallel::Workers* workers = nullptr);

}  // namespace penstock::cpu_adam
