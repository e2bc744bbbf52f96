// In a file of its own: only programs that use it link the CUDA runtime.
#include "cpu_adam/cuda_device_adam.hpp"
#include "kernels/cuda_compute.hpp"
#include "tiers/device/cuda_device.hpp"

#include <penstock/zero/rank.hpp>

namespace penstock::zero {

#if PENSTOCK_HAS_CUDA

Result<Accelerator> make_cuda_accelerator(int ordinal) {
  PENSTOCK_TRY_ASSIGN(auto device, tiers::create_cuda_device(ordinal));
  PENSTOCK_TRY_ASSIGN(auto compute, kernels::make_cuda_compute(ordinal));
  PENSTOCK_TRY_ASSIGN(auto adam, cpu_adam::make_cuda_device_adam(ordinal));
  return Accelerator{.device = std::move(device), .compute = std::move(compute), .adam = std::move(adam)};
}

Result<std::unique_ptr<tiers::Stream>> wrap_cuda_stream(int ordinal, void* stream) {
  return tiers::wrap_cuda_stream(ordinal, stream);
}

#else

namespace {
Error without_cuda(const char* operation) {
  return Error::unsupported(operation)
      .reason("this build has no CUDA")
      .advice("install the CUDA toolkit and build with PENSTOCK_CUDA=ON");
}
}  // namespace

Result<Accelerator> make_cuda_accelerator(int) {
  return without_cuda("make_cuda_accelerator");
}

Result<std::unique_ptr<tiers::Stream>> wrap_cuda_stream(int, void*) {
  return without_cuda("wrap_cuda_stream");
}

#endif

}  // namespace penstock::zero
