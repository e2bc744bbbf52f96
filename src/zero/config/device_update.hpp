#pragma once

#include <penstock/zero/config/config.hpp>

namespace penstock::zero {

/// Whether a device with memory of its own updates some of the offloaded states, or keeps them.
[[nodiscard]] inline bool asks_device_to_update(const Config& config) {
  return config.offload_optimizer.device != OffloadDevice::none &&
         (config.cpu_update_ratio < 1 || config.penstock.update_split == UpdateSplit::automatic ||
          !config.penstock.device_states.is_zero());
}

}  // namespace penstock::zero
