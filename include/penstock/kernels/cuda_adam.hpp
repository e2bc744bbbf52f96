#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/stream.hpp>
#include <penstock/kernels/adam_coefficients.hpp>

namespace penstock::kernels {

/// One optimizer tile in device memory, in the layout of fp32 tiles in host memory: blocks of
/// adam_block_elements, each [master n × 4 B][m n × 4 B][v n × 4 B]. Spans do not overlap.
struct DeviceAdamTile {
  DeviceSpan state;  ///< 12 bytes an element, aligned to 4
  DeviceTensor gradient;
  DeviceTensor parameter;  ///< written, one element for each of the gradient
  /// 8 bytes, aligned: a uint64, the first block that holds a master or second moment that is not finite,
  /// else all ones.
  DeviceSpan first_non_finite_block;
};

/// Enqueues one step on a stream of CUDA device `device`: the same bits as cpu_adam's adam_step for finite
/// values. Blocks never; the tile stays alive until the stream has passed it.
///
/// Errors: invalid_argument, for lengths, overlaps or misalignment; io, when the launch is refused.
Result<void> cuda_adam_step(int device, StreamHandle stream, const AdamCoefficients& coefficients,
                            const DeviceAdamTile& tile);

}  // namespace penstock::kernels
