#pragma once

#include <penstock/cpu_adam/device_adam.hpp>

#include <memory>

namespace penstock::cpu_adam {

/// For CUDA device number `ordinal`, on which it loads its kernels.
///
/// Errors: as kernels::load_cuda_adam().
[[nodiscard]] Result<std::unique_ptr<DeviceAdam>> make_cuda_device_adam(int ordinal);

}  // namespace penstock::cpu_adam
