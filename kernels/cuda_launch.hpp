#pragma once

#include "kernels/element.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/stream.hpp>

#include <cuda_runtime.h>
#include <algorithm>
#include <cstdint>
#include <string>

// Internal to the CUDA sources.
namespace penstock::kernels {

inline Result<void> check_cuda(const char* operation, cudaError_t status) {
  if (status == cudaSuccess) return ok();
  return Error(ErrorCode::io, operation).reason(std::string("CUDA: ") + cudaGetErrorString(status));
}

inline cudaStream_t cuda_stream(StreamHandle stream) {
  return static_cast<cudaStream_t>(stream.native());
}

/// Makes a device current for this thread; the destructor restores the former one.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    status_ = cudaGetDevice(&former_);
    if (status_ == cudaSuccess && former_ != device) {
      status_ = cudaSetDevice(device);
      changed_ = status_ == cudaSuccess;
    }
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(former_);
  }

  [[nodiscard]] cudaError_t status() const { return status_; }

 private:
  int former_ = 0;
  cudaError_t status_;
  bool changed_ = false;
};

inline constexpr unsigned threads_per_block = 256;

/// The grid size: one element per thread, up to 65536 thread blocks, which fill any device. The kernels are grid-stride
/// loops.
inline unsigned grid_for(std::uint64_t threads) {
  return static_cast<unsigned>(
      std::min<std::uint64_t>((threads + threads_per_block - 1) / threads_per_block, 1u << 16));
}

/// Runs `launch` on `device`. With zero threads it launches nothing, because CUDA rejects an empty grid.
template <class Launch>
Result<void> launch_on(const char* operation, int device, std::uint64_t threads, Launch&& launch) {
  if (threads == 0) return ok();
  const CurrentDevice current(device);
  PENSTOCK_TRY(check_cuda(operation, current.status()));
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

}  // namespace penstock::kernels
