#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/stream.hpp>

#include <cstdint>
#include <span>

namespace penstock {

/// The closed set of elementwise operations on the memory of one kind of device.
///
/// Every operation is stream-ordered: it returns once enqueued, and its operands stay alive until the
/// stream has passed it. Arithmetic is fp32 without contraction, with one rounding (nearest, ties to even)
/// to the destination's dtype, and gives the same bits on every implementation for finite values.
/// Operands may be aligned to their element only, and of length zero.
///
/// Safe from any thread; calls on one stream come from one thread at a time. Nothing here blocks.
/// Errors: invalid_argument, for lengths that differ or a dtype that an operation does not take.
class Compute {
 public:
  /// square_sums() writes one partial sum for each block of so many elements.
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

  /// out[i] = round((x[0][i] + x[1][i] + …) * (1 / x.size())), the sum in fp32 in the order given: the
  /// `exact` reduction. `out` may be one of the inputs. At most 64 inputs, all of one dtype.
  virtual Result<void> mean(StreamHandle stream, std::span<const DeviceTensor> x, DeviceTensor out) = 0;

  /// partials[b] (double) = sum of x[i]² over block b of square_sum_block elements, in a fixed order: 16
  /// lanes, lane i mod 16, each summed in increasing i; then lanes halved pairwise (l += l + 8, + 4, + 2,
  /// + 1). Squares of fp32 are exact in double and cannot overflow it, so a partial is non-finite exactly
  /// when an element of its block is. `partials` holds ceil(count / square_sum_block) doubles.
  virtual Result<void> square_sums(StreamHandle stream, DeviceTensor x, DeviceSpan partials) = 0;
};

/// Adds partial square sums by a fixed pairwise tree (halves of the next power of two), so that the result
/// depends on their number and order only. On host memory.
[[nodiscard]] double sum_tree(std::span<const double> partials);

}  // namespace penstock
