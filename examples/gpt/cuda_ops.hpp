#pragma once

#include "gpt/ops.hpp"

#include <memory>

namespace gpt {

/// Creates the Ops of the current CUDA device: cuBLAS in fp32 and the example's own kernels, launched on the
/// cudaStream_t in stream.native(). Attention multiplies on tensor cores: operands are rounded to bf16, sums are fp32.
/// No atomics, so the bits are the same in every run.
///
/// Allocates `scratch` bytes of device memory, for the fp32 copy of one parameter, and loads all kernels: later both
/// could wait for the device. Destroy the Ops only after the enqueued work has finished.
///
/// Errors: budget_too_small, if the device has less memory; unsupported, if there is no device that cuBLAS can use, or
/// this build has no code for it.
[[nodiscard]] penstock::Result<std::unique_ptr<Ops>> make_cuda_ops(penstock::ByteCount scratch);

}  // namespace gpt
