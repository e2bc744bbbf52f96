// In a file of its own: only programs that use it link the CUDA runtime.
#include "kernels/cuda_compute.hpp"
#include "tiers/device/cuda_device.hpp"

#include <penstock/zero/rank.hpp>

namespace penstock::zero {

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
