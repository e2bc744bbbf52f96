#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/stream.hpp>
#include <penstock/kernels/variants.hpp>
#include "kernels/adam_coefficients.hpp"

namespace penstock::kernels {

/// One optimizer tile in device memory, in the layout of tiles in host memory: blocks of adam_block_elements,
/// each [master n × 4 B][m n × 4 B][v n × 4 B] in fp32, [m n × 4 B][v n × 4 B][remainder n × 2 B] in split.
/// Spans do not overlap.
struct DeviceAdamTile {
  DeviceSpan state;  ///< 12 bytes an element, in split 10; aligned to 4
  DeviceTensor gradient;
  /// One element for each of the gradient. Written; in split bf16, the upper half of the master, and read
  /// too.
  DeviceTensor parameter;
  /// 8 bytes, aligned: a uint64, the first block that holds a master or second moment that is not finite,
  /// else all ones.
  DeviceSpan first_non_finite_block;
  StateFormat format = StateFormat::fp32;  ///< fp32 or split: those that there is a kernel for
};

/// Enqueues one step on a stream of CUDA device `device`: the same bits as cpu_adam's adam_step for finite
/// values. Blocks never; the tile stays alive until the stream has passed it.
///
/// Errors: unsupported, for a format without a kernel; invalid_argument, for lengths, overlaps, misalignment or a
/// parameter that is not bf16 in split; io, when the launch is refused.
Result<void> cuda_adam_step(int device, StreamHandle stream, const AdamCoefficients& coefficients,
                            const DeviceAdamTile& tile);

}  // namespace penstock::kernels
