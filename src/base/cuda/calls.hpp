#pragma once

#include <penstock/base/result.hpp>

#include <cuda_runtime_api.h>
#include <string>

// For the CUDA sources of all modules: `base` itself is built without CUDA.
namespace penstock {

/// The kind of a failure, and what to do about it.
struct CudaFailure {
  ErrorCode code = ErrorCode::io;
  const char* advice = "";
};

inline CudaFailure cuda_failure(cudaError_t code) {
  switch (code) {
    case cudaErrorMemoryAllocation:
      return {ErrorCode::budget_too_small,
              "lower the device budget, or end the other processes on this device (nvidia-smi)"};
    case cudaErrorNoDevice:
      return {ErrorCode::unsupported,
              "check CUDA_VISIBLE_DEVICES, and in a container that it was given the device (--gpus)"};
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return {
          ErrorCode::unsupported,
          "load the NVIDIA driver, and give a container its devices; if one is loaded (nvidia-smi), install "
          "one for this CUDA runtime or a newer one, or build with an older toolkit"};
    case cudaErrorInvalidDeviceFunction:  // also "not compiled for the proper device architecture"
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return {ErrorCode::unsupported,
              "build with the device's compute capability in CMAKE_CUDA_ARCHITECTURES (nvidia-smi "
              "--query-gpu=compute_cap)"};
    case cudaErrorInvalidDevice:
      return {ErrorCode::invalid_argument, "name a device that exists (nvidia-smi -L)"};
    case cudaErrorInvalidResourceHandle:
      return {ErrorCode::invalid_argument,
              "use streams and events of the device of this rank, and only while they exist"};
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
      return {ErrorCode::io,
              "the hardware has failed: see the Xid in the kernel log (dmesg) and reset the device"};
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
      return {ErrorCode::io,
              "an operation enqueued before has failed, and the device is lost for this process; "
              "compute-sanitizer, "
              "or CUDA_LAUNCH_BLOCKING=1, names the operation"};
    default: return {};
  }
}

/// The error of a CUDA call. Clears the thread's last CUDA error, which the next kernel launch would return again.
inline Error cuda_error(const char* operation, cudaError_t code) {
  (void)cudaGetLastError();
  const CudaFailure failure = cuda_failure(code);
  Error error = Error(failure.code, operation).reason(std::string("CUDA: ") + cudaGetErrorString(code));
  return *failure.advice == '\0' ? error : std::move(error).advice(failure.advice);
}

inline Result<void> check_cuda(const char* operation, cudaError_t code) {
  if (code == cudaSuccess) return ok();
  return cuda_error(operation, code);
}

/// For a call whose failure changes nothing here. Clears the thread's last CUDA error, as cuda_error() does.
inline void ignore_cuda(cudaError_t code) {
  if (code != cudaSuccess) (void)cudaGetLastError();
}

/// Makes `device` the calling thread's current device and leaves it so: a thread of the library uses one device, and to
/// make another one current, even the one before, creates a context there (CUDA Runtime API, cudaSetDevice).
inline Result<void> use_device(const char* operation, int device) {
  int current = -1;
  PENSTOCK_TRY(check_cuda(operation, cudaGetDevice(&current)));
  if (current == device) return ok();
  return check_cuda(operation, cudaSetDevice(device));
}

}  // namespace penstock
