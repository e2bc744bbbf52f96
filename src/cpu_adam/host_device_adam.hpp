#pragma once

#include <penstock/cpu_adam/device_adam.hpp>

#include <memory>

namespace penstock::cpu_adam {

/// For devices whose memory is host memory and whose streams are HostQueues.
[[nodiscard]] std::unique_ptr<DeviceAdam> make_host_device_adam();

}  // namespace penstock::cpu_adam
