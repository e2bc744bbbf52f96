#pragma once

#include "gpt/device_memory.hpp"
#include "gpt/ops.hpp"

#include <memory>

namespace gpt {

/// Creates the Ops of the current CUDA device: cuBLAS in fp32 and the example's own kernels, launched on the
/// cudaStream_t in stream.native(). No atomics, so the bits are the same in every run.
///
/// `scratch` is device memory for the fp32 copy of one parameter. The Ops keep it alive; destroy them only after the
/// enqueued work has finished.
///
/// Errors: unsupported, when cuBLAS finds no device to run on.
[[nodiscard]] penstock::Result<std::unique_ptr<Ops>> make_cuda_ops(DeviceBuffer scratch);

}  // namespace gpt
