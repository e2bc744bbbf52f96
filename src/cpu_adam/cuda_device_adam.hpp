#pragma once

#include <penstock/cpu_adam/device_adam.hpp>

#include <memory>

namespace penstock::cpu_adam {

/// For CUDA device number `ordinal`, whose kernels are loaded.
[[nodiscard]] std::unique_ptr<DeviceAdam> make_cuda_device_adam(int ordinal);

}  // namespace penstock::cpu_adam
