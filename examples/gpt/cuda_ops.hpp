#pragma once

#include "gpt/model_config.hpp"
#include "gpt/ops.hpp"

#include <memory>

namespace gpt {

/// Of the devices that this process sees; 0 without a driver.
[[nodiscard]] int cuda_device_count();

/// The scratch memory that make_cuda_ops() needs for a model.
[[nodiscard]] penstock::ByteCount cuda_scratch_size(const ModelConfig& config);

/// Creates the Ops of the current CUDA device: operands are bf16; layers are products of cuBLASLt with its epilogues;
/// attention, on tensor cores, and the rest are the example's own kernels. All are launched on the cudaStream_t in
/// stream.native(). No atomics, so the bits are the same in every run.
///
/// Allocates `scratch` bytes of device memory and 32 MiB for cuBLASLt, and loads all kernels: later both could wait for
/// the device. Destroy the Ops only after the enqueued work has finished.
///
/// Errors: budget_too_small, if the device has less memory; unsupported, if there is no device that cuBLASLt can use,
/// or this build has no code for it.
[[nodiscard]] penstock::Result<std::unique_ptr<Ops>> make_cuda_ops(penstock::ByteCount scratch);

}  // namespace gpt
