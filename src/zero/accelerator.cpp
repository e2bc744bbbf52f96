#include "kernels/cuda_compute.hpp"
#include "kernels/host_compute.hpp"
#include "tiers/device/cuda_device.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/rank.hpp>

namespace penstock::zero {

Accelerator make_host_accelerator(ByteCount memory) {
  return {.device = std::make_unique<tiers::HostDevice>(tiers::HostDevice::Options{.memory = memory}),
          .compute = kernels::make_host_compute()};
}

#if PENSTOCK_HAS_CUDA

Result<Accelerator> make_cuda_accelerator(int ordinal) {
  PENSTOCK_TRY_ASSIGN(auto device, tiers::create_cuda_device(ordinal));
  return Accelerator{.device = std::move(device), .compute = kernels::make_cuda_compute(ordinal)};
}

#else

Result<Accelerator> make_cuda_accelerator(int) {
  return Error::unsupported("make_cuda_accelerator")
      .reason("this build has no CUDA")
      .advice("install the CUDA toolkit and build with PENSTOCK_CUDA=ON");
}

#endif

}  // namespace penstock::zero
