// Devices, errors and memory of the CUDA runtime.
#include "fake_cuda/runtime.hpp"

#include <sys/uio.h>
#include <unistd.h>
#include <cstring>

using namespace penstock::test::fake_cuda;

namespace {

/// Whether a byte of host memory can be read.
bool is_readable(const std::byte* address) {
  std::byte byte{};
  const iovec to{&byte, 1}, from{const_cast<std::byte*>(address), 1};
  return ::process_vm_readv(::getpid(), &to, 1, &from, 1, 0) == 1;
}

bool exists(const Runtime& runtime, int device) {
  return device >= 0 && static_cast<std::size_t>(device) < runtime.devices.size();
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  return call("cudaGetDeviceCount", [&](Runtime& runtime, auto&) {
    *count = static_cast<int>(runtime.devices.size());
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call("cudaGetDeviceProperties", [&](Runtime& runtime, auto&) {
    if (!exists(runtime, device)) return cudaErrorInvalidDevice;
    *properties = {};
    std::strncpy(properties->name, "fake CUDA device", sizeof properties->name - 1);
    properties->totalGlobalMem = runtime.machine.memory;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->major = 8;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return call("cudaGetDevice", [&](Runtime& runtime, auto&) {
    *device = runtime.current_device();
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", [&](Runtime& runtime, auto&) {
    if (!exists(runtime, device)) return cudaErrorInvalidDevice;
    runtime.set_current_device(device);
    runtime.devices[static_cast<std::size_t>(device)].has_context = true;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return call("cudaDeviceCanAccessPeer", [&](Runtime& runtime, auto&) {
    if (!exists(runtime, device) || !exists(runtime, peer)) return cudaErrorInvalidDevice;
    *can = device != peer && runtime.machine.peer_access ? 1 : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return call("cudaDeviceEnablePeerAccess", [&](Runtime& runtime, auto&) {
    const int device = runtime.current_device();
    if (flags != 0) return cudaErrorInvalidValue;
    if (!exists(runtime, peer) || peer == device) return cudaErrorInvalidDevice;
    if (!runtime.machine.peer_access) return cudaErrorPeerAccessUnsupported;
    const bool is_new = runtime.devices[static_cast<std::size_t>(device)].peers.insert(peer).second;
    return is_new ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", [&](Runtime& runtime, auto& lock) {
    return runtime.wait_for_device(lock, runtime.current_device());
  });
}

cudaError_t cudaGetLastError() {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  ++runtime.counts.calls["cudaGetLastError"];
  return runtime.last_error(/*clear=*/true);
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidDeviceFunction: return "invalid device function";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorNoKernelImageForDevice: return "no kernel image is available for execution on the device";
    case cudaErrorECCUncorrectable: return "uncorrectable ECC error encountered";
    case cudaErrorPeerAccessUnsupported: return "peer access is not supported between these two devices";
    case cudaErrorPeerAccessAlreadyEnabled: return "peer access is already enabled";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    case cudaErrorHostMemoryNotRegistered: return "pointer does not correspond to a registered memory region";
    default: return "unrecognized error code";
  }
}

cudaError_t cudaMalloc(void** address, std::size_t size) {
  return call("cudaMalloc", [&](Runtime& runtime, auto&) {
    if (address == nullptr) return cudaErrorInvalidValue;
    *address = nullptr;
    if (size == 0) return cudaSuccess;
    const int device = runtime.current_device();
    const std::size_t free = runtime.machine.memory - runtime.memory.used(device);
    if (size > free || DeviceMemory::rounded(size) > free) return cudaErrorMemoryAllocation;
    *address = reinterpret_cast<void*>(runtime.memory.allocate(device, size)->address);
    return cudaSuccess;
  });
}

// "cudaFree" of the Programming Guide, "Implicit synchronization": work that uses the memory has ended.
cudaError_t cudaFree(void* address) {
  return call("cudaFree", [&](Runtime& runtime, auto& lock) {
    if (address == nullptr) return cudaSuccess;
    const auto block = runtime.memory.starting_at(address);
    if (block == nullptr) return cudaErrorInvalidValue;
    if (const cudaError_t lost = runtime.wait_for_device(lock, block->device); lost != cudaSuccess)
      return lost;
    runtime.memory.release(*block);
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call("cudaMemGetInfo", [&](Runtime& runtime, auto&) {
    if (free == nullptr || total == nullptr) return cudaErrorInvalidValue;
    *total = runtime.machine.memory;
    *free = *total - runtime.memory.used(runtime.current_device());
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  return call("cudaPointerGetAttributes", [&](Runtime& runtime, auto&) {
    if (attributes == nullptr || address == nullptr) return cudaErrorInvalidValue;
    *attributes = {};
    attributes->type = cudaMemoryTypeUnregistered;
    if (runtime.memory.reserves(address)) {
      attributes->type = cudaMemoryTypeDevice;
    } else if (runtime.registrations.kind(address, 1) == HostRegistrations::Kind::registered) {
      attributes->type = cudaMemoryTypeHost;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaHostRegister(void* address, std::size_t size, unsigned) {
  return call("cudaHostRegister", [&](Runtime& runtime, auto&) {
    const auto* const first = static_cast<const std::byte*>(address);
    if (size == 0 || !is_readable(first) || !is_readable(first + size - 1)) return cudaErrorInvalidValue;
    return runtime.registrations.add(address, size) ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
  });
}

cudaError_t cudaHostUnregister(void* address) {
  return call("cudaHostUnregister", [&](Runtime& runtime, auto&) {
    if (address == nullptr) return cudaErrorInvalidValue;
    return runtime.registrations.remove(address) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
  });
}

}  // extern "C"
