#pragma once

#include <penstock/base/compute.hpp>

#include <memory>

namespace penstock::kernels {

/// Creates the Compute of one CUDA device. Stream handles hold its cudaStream_t. Stateless apart from the device
/// number; safe from any thread; leaves the device current in the calling thread. Exists only in builds with CUDA.
///
/// Errors: unsupported, for a device without kernels in this build; those of the driver.
///
/// Operations also fail with io when a launch fails. Errors of running kernels are reported by the next wait for the
/// stream.
[[nodiscard]] Result<std::unique_ptr<Compute>> make_cuda_compute(int device);

}  // namespace penstock::kernels
