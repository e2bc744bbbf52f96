#pragma once

#include "base/cuda/calls.hpp"
#include "kernels/element.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/stream.hpp>

#include <cuda_runtime.h>
#include <algorithm>
#include <cstdint>

// Internal to the CUDA sources.
namespace penstock::kernels {

inline cudaStream_t cuda_stream(StreamHandle stream) {
  return static_cast<cudaStream_t>(stream.native());
}

inline constexpr unsigned threads_per_block = 256;
/// Thread blocks that are to fit a multiprocessor, which leaves a thread 80 and 64 registers. All kernels say how many:
/// without that ptxas uses fewer registers and moves loads to where their values are used, so that few are in flight.
inline constexpr unsigned three_blocks = 3, four_blocks = 4;

/// The grid size, for kernels that are grid-stride loops: up to 65536 thread blocks, which fill any device.
inline unsigned grid_for(std::uint64_t threads) {
  return static_cast<unsigned>(
      std::min<std::uint64_t>((threads + threads_per_block - 1) / threads_per_block, 1u << 16));
}

/// Runs `launch` on `device`. With zero threads it launches nothing, because CUDA rejects an empty grid.
template <class Launch>
Result<void> launch_on(const char* operation, int device, std::uint64_t threads, Launch&& launch) {
  if (threads == 0) return ok();
  PENSTOCK_TRY(use_device(operation, device));
  launch(grid_for(threads));
  return check_cuda(operation, cudaGetLastError());
}

/// Calls `body` with a pointer to the element type of x.dtype.
template <class Body>
void with_device_elements(DeviceTensor x, Body&& body) {
  void* address = reinterpret_cast<void*>(static_cast<std::uintptr_t>(x.bytes.address()));
  switch (x.dtype) {
    case DType::fp32: return body(static_cast<float*>(address));
    case DType::bf16: return body(static_cast<Bf16*>(address));
    case DType::fp16: return body(static_cast<Fp16*>(address));
  }
}

/// Calls `body` with a null pointer to each element type.
template <class Body>
void with_each_element(Body&& body) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) with_device_elements({{}, dtype}, body);
}

/// Loads kernels. CUDA would load each at its first launch, which then waits for the device (CUDA C++ Programming
/// Guide, "Lazy Loading").
class KernelLoader {
 public:
  template <class Kernel>
  void operator()(Kernel* kernel) {
    cudaFuncAttributes attributes{};
    if (status_ == cudaSuccess) status_ = cudaFuncGetAttributes(&attributes, kernel);
  }
  [[nodiscard]] Result<void> result(const char* operation) const { return check_cuda(operation, status_); }

 private:
  cudaError_t status_ = cudaSuccess;
};

}  // namespace penstock::kernels
