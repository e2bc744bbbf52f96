#pragma once

#include <penstock/base/compute.hpp>

#include <memory>

namespace penstock::kernels {

/// Creates the Compute of one CUDA device. Stream handles hold its cudaStream_t. Stateless apart from the device
/// number; safe from any thread; leaves the device current in the calling thread. Exists only in builds with CUDA.
///
/// Errors: unsupported, for a device without kernels in this build; those of the driver.
///
/// Operands that are all at multiples of 16 bytes are accessed with 16 bytes at a time (16-bit elements beside fp32
/// ones that are written: with 8), others element by element.
///
/// Operations also fail with io when a launch fails. Errors of running kernels are reported by the next wait for the
/// stream.
[[nodiscard]] Result<std::unique_ptr<Compute>> make_cuda_compute(int device);

}  // namespace penstock::kernels
