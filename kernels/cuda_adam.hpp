#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/stream.hpp>
#include <penstock/kernels/variants.hpp>
#include "kernels/adam_coefficients.hpp"

namespace penstock::kernels {

/// One optimizer tile in device memory, with the same layout as in host memory: blocks of adam_block_elements, each
/// [master n × 4 B][m n × 4 B][v n × 4 B] in fp32 and [m n × 4 B][v n × 4 B][remainder n × 2 B] in split. Spans do
/// not overlap.
struct DeviceAdamTile {
  DeviceSpan state;  ///< 12 bytes per element in fp32, 10 in split; aligned to 4
  DeviceTensor gradient;
  /// As many elements as the gradient. fp32: written only. split: bf16, the upper half of the master, read and
  /// written.
  DeviceTensor parameter;
  /// An aligned uint64, written: the first block that holds a master or second moment that is not finite, or all ones
  /// if there is none.
  DeviceSpan first_non_finite_block;
  StateFormat format = StateFormat::fp32;  ///< fp32 or split; the others have no CUDA kernel
};

/// Enqueues one step on a stream of CUDA device `device`. Finite values have the same bits as from cpu_adam's
/// adam_step. Never blocks; the tile must stay alive until the stream has executed the step.
///
/// Errors: unsupported, for a format without a kernel; invalid_argument, for lengths, overlaps, misalignment or a
/// parameter that is not bf16 in split; io, when the launch fails.
Result<void> cuda_adam_step(int device, StreamHandle stream, const AdamCoefficients& coefficients,
                            const DeviceAdamTile& tile);

}  // namespace penstock::kernels
