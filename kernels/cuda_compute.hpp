#pragma once

#include <penstock/base/compute.hpp>

#include <memory>

namespace penstock::kernels {

/// Compute on the memory of one CUDA device: the stream handles hold its cudaStream_t. Holds no other state;
/// safe from any thread, and leaves the thread's current device as it was. Present where the library was
/// built with CUDA.
///
/// Operations also fail with io when a launch is refused; faults of running kernels show where the stream is
/// next waited for.
[[nodiscard]] std::unique_ptr<Compute> make_cuda_compute(int device);

}  // namespace penstock::kernels
