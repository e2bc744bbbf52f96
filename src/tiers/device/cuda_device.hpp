#pragma once

#include <penstock/tiers/device/device.hpp>

#include <memory>

namespace penstock::tiers {

/// The number of CUDA devices that this process can use. Available in a build with CUDA.
///
/// Errors: unsupported, with the driver's reason, if there is no driver or no device.
[[nodiscard]] Result<int> cuda_device_count();

/// CUDA device number `device`: its own streams (non-blocking), events without timing, asynchronous copies. Its calls
/// leave it current in the calling thread.
///
/// Errors: unsupported, with the driver's reason; invalid_argument, for a device that does not exist.
[[nodiscard]] Result<std::unique_ptr<Device>> create_cuda_device(int device);

/// See zero::wrap_cuda_stream().
[[nodiscard]] Result<std::unique_ptr<Stream>> wrap_cuda_stream(int device, void* stream);

}  // namespace penstock::tiers
