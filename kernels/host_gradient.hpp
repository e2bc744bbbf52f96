#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>

#include <cstdint>
#include <span>

// What accumulating a gradient shard needs, on host memory and at once: Compute's arithmetic without its
// streams. Safe on any thread for disjoint outputs; the bits do not depend on how a shard is cut, as long as
// square_sums is cut at multiples of Compute::square_sum_block.
namespace penstock::kernels {

/// Whether a micro-batch's gradient begins the accumulator or is added to it.
enum class GradientWrite : std::uint8_t { overwrite, accumulate };

/// A piece of an incoming gradient shard and the same elements of the accumulator, apart from it.
struct GradientPiece {
  ConstHostSpan incoming;
  DType incoming_dtype;
  HostSpan accumulator;
  DType accumulator_dtype;
};

/// accumulator[i] = round(incoming[i]), or round(accumulator[i] + incoming[i]), in fp32 with one rounding.
///
/// Errors: invalid_argument, for element counts that differ, or spans that overlap or are not aligned to
/// their element.
Result<void> accumulate_gradient(const GradientPiece& piece, GradientWrite write) noexcept;

/// The sums that Compute::square_sums describes, one for each Compute::square_sum_block elements of `x`.
///
/// Errors: invalid_argument, for a misaligned or broken `x`, or a `partials` of another length.
Result<void> square_sums(ConstHostSpan x, DType dtype, std::span<double> partials) noexcept;

}  // namespace penstock::kernels
