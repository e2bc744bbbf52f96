#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/stream.hpp>
#include <penstock/kernels/variants.hpp>
#include "kernels/adam_coefficients.hpp"

#include <cstdint>

namespace penstock::kernels {

/// One optimizer tile in device memory, with the same layout as in host memory (cpu_adam/state_format.hpp). Spans do
/// not overlap and are aligned to their element; `state` to the widest number in it.
///
/// If state, gradient and parameter are at multiples of 16 bytes, elements are accessed in groups of up to 16 bytes,
/// but not in a last block whose length is not a multiple of 8. Other tiles are accessed element by element, with the
/// same result. A tile that is cut from another one at a block boundary keeps its alignment.
struct DeviceAdamTile {
  DeviceSpan state;  ///< the bytes of the format and of the gradient's number of elements
  DeviceTensor gradient;
  /// As many elements as the gradient. Format fp32: written only. Formats moments and moments_bf16: the master. Split
  /// formats: the upper half of the master, in bf16. Read and written in both.
  DeviceTensor parameter;
  /// An aligned uint64, written: the first block that holds a master or second moment that is not finite, or all ones
  /// if there is none.
  DeviceSpan first_non_finite_block;
  StateFormat format = StateFormat::fp32;
  /// The seed of stochastic rounding, which formats without it ignore: the number of the
  /// step, from 1, and of the tile's first element in the model, as AdamTile::first_element.
  std::uint64_t step = 0, first_element = 0;
};

/// Loads the kernels of cuda_adam_step() on CUDA device `device`, so that its calls do not.
///
/// Errors: unsupported, if this build has no kernels for the device's compute capability; invalid_argument, for a
/// device that does not exist.
Result<void> load_cuda_adam(int device);

/// Enqueues one step on a stream of CUDA device `device`. Finite values have the same bits as from cpu_adam's
/// adam_step. Never blocks; the tile must stay alive until the stream has executed the step.
///
/// Errors: invalid_argument, for an unknown format, a parameter whose dtype the format does not take, step 0 in a
/// format that rounds stochastically, lengths, overlaps or misalignment; io, when the launch fails.
Result<void> cuda_adam_step(int device, StreamHandle stream, const AdamCoefficients& coefficients,
                            const DeviceAdamTile& tile);

}  // namespace penstock::kernels
