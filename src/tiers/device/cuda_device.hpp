#pragma once

#include <penstock/tiers/device/device.hpp>

#include <memory>

namespace penstock::tiers {

/// How many CUDA devices this process can use. Zero, with the driver's reason in the error, where there is
/// no driver or no device. Present where the library was built with CUDA.
[[nodiscard]] Result<int> cuda_device_count();

/// CUDA device number `device`: its own streams (non-blocking), events without timing, asynchronous copies.
///
/// Errors: unsupported, with the driver's reason; invalid_argument, for a device that does not exist.
[[nodiscard]] Result<std::unique_ptr<Device>> create_cuda_device(int device);

}  // namespace penstock::tiers
