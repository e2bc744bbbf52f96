#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>

#include <cstdint>
#include <span>

// The operations that accumulate a gradient shard in host memory: Compute's arithmetic, executed immediately instead of
// on a stream. Safe from any thread for disjoint outputs. A shard may be processed in parts without changing a bit;
// parts for square_sums() must start at multiples of Compute::square_sum_block.
namespace penstock::kernels {

/// Whether a micro-batch's gradient overwrites the accumulator or is added to it.
enum class GradientWrite : std::uint8_t { overwrite, accumulate };

/// A part of an incoming gradient shard and the same elements of the accumulator. The spans do not overlap.
struct GradientPiece {
  ConstHostSpan incoming;
  DType incoming_dtype;
  HostSpan accumulator;
  DType accumulator_dtype;
};

/// accumulator[i] = round(incoming[i]), or round(accumulator[i] + incoming[i]), in fp32 with one rounding.
///
/// Errors: invalid_argument, for different element counts, and for spans that overlap or are not aligned to their
/// element.
Result<void> accumulate_gradient(const GradientPiece& piece, GradientWrite write) noexcept;

/// The sums that Compute::square_sums describes, one for each Compute::square_sum_block elements of `x`.
///
/// Errors: invalid_argument, when `x` is misaligned or not a whole number of elements, or `partials` has another
/// length.
Result<void> square_sums(ConstHostSpan x, DType dtype, std::span<double> partials) noexcept;

}  // namespace penstock::kernels
