#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/stream.hpp>

#include <cstdint>
#include <span>

namespace penstock {

/// The closed set of elementwise operations on the memory of one kind of device.
///
/// Every operation is stream-ordered: the call returns once it is enqueued, and its operands must stay alive until
/// the stream has executed it. Arithmetic is fp32 without contraction, with one rounding (nearest, ties to even) to
/// the destination's dtype. Finite values have the same bits in every implementation. Operands need only the
/// alignment of their element and may have length zero.
///
/// Safe from any thread; calls on one stream come from one thread at a time. Nothing here blocks.
/// Errors: invalid_argument, for different lengths or a dtype that an operation does not support.
class Compute {
 public:
  /// square_sums() writes one partial sum for each block of this many elements.
  static constexpr std::uint64_t square_sum_block = 4096;

  Compute() = default;
  Compute(const Compute&) = delete;
  Compute& operator=(const Compute&) = delete;
  virtual ~Compute() = default;

  /// to[i] = from[i], rounded to nearest even. Same dtype: a copy. `to` and `from` do not overlap.
  virtual Result<void> cast(StreamHandle stream, DeviceTensor from, DeviceTensor to) = 0;

  /// x[i] = round(x[i] * factor).
  virtual Result<void> scale(StreamHandle stream, DeviceTensor x, float factor) = 0;

  /// sum[i] = round(sum[i] + x[i]).
  virtual Result<void> accumulate(StreamHandle stream, DeviceTensor x, DeviceTensor sum) = 0;

  /// out[i] = round((x[0][i] + x[1][i] + …) * (1 / x.size())), summed in fp32 in the given order: the arithmetic of
  /// the `exact` reduction. `out` may be one of the inputs. At most mean_inputs_max inputs, all of one dtype.
  static constexpr std::size_t mean_inputs_max = 64;
  virtual Result<void> mean(StreamHandle stream, std::span<const DeviceTensor> x, DeviceTensor out) = 0;

  /// partials[b] (double) = sum of x[i]² over block b of square_sum_block elements, in a fixed order: element i is
  /// added to accumulator i mod 16, in increasing i; then the 16 accumulators are reduced pairwise (a[l] += a[l + 8],
  /// then + 4, + 2, + 1). Squares of fp32 are exact in double and cannot overflow it, so a partial sum is non-finite
  /// exactly when an element of its block is. `partials` holds ceil(count / square_sum_block) doubles.
  virtual Result<void> square_sums(StreamHandle stream, DeviceTensor x, DeviceSpan partials) = 0;
};

/// Adds partial square sums by a fixed pairwise tree (halves of the next power of two), so that the result depends
/// only on their number and order. `partials` are in host memory.
[[nodiscard]] double sum_tree(std::span<const double> partials);

}  // namespace penstock
