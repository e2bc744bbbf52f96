#pragma once

#include <cuda_runtime_api.h>

#include <functional>

/// What the tests need and the library does not call. on_cuda.cpp uses NVIDIA's runtime for it, on_fake.cpp the fake.
namespace penstock::test::cuda_semantics {

/// Runs `function` on the host when the stream gets there. It makes no CUDA call.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> function);
/// Whether this process has a context on the device.
[[nodiscard]] bool has_context(int device);
/// Makes a process that has made no CUDA call see no device.
void hide_devices();

}  // namespace penstock::test::cuda_semantics
