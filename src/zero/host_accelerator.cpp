#include "cpu_adam/host_device_adam.hpp"
#include "kernels/host_compute.hpp"

#include <penstock/zero/rank.hpp>

namespace penstock::zero {

Accelerator make_host_accelerator(ByteCount memory) {
  return make_host_accelerator(tiers::HostDevice::Options{.memory = memory});
}

Accelerator make_host_accelerator(const tiers::HostDevice::Options& options) {
  return {.device = std::make_unique<tiers::HostDevice>(options),
          .compute = kernels::make_host_compute(),
          .adam = cpu_adam::make_host_device_adam()};
}

}  // namespace penstock::zero
