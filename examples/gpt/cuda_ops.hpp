#pragma once

#include "gpt/device_memory.hpp"
#include "gpt/ops.hpp"

#include <memory>

namespace gpt {

/// Makes the Ops of the current CUDA device: cuBLAS in fp32 and kernels of the example's own, launched on the
/// cudaStream_t in stream.native(). No atomics, so the bits are the same from run to run.
///
/// `scratch` is device memory for the fp32 copy of one parameter and outlives what is enqueued; it lives as
/// long as the Ops.
///
/// Errors: unsupported, when cuBLAS finds no device to run on.
[[nodiscard]] penstock::Result<std::unique_ptr<Ops>> make_cuda_ops(DeviceBuffer scratch);

}  // namespace gpt
