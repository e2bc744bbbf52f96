#include "cpu_adam/cuda_device_adam.hpp"

#include "cpu_adam/adam_coefficients.hpp"
#include "kernels/cuda_adam.hpp"

namespace penstock::cpu_adam {

namespace {

class CudaDeviceAdam final : public DeviceAdam {
 public:
  explicit CudaDeviceAdam(int ordinal) : ordinal_(ordinal) {}

  Result<void> step(StreamHandle stream, const AdamConfig& config, std::uint64_t step, float gradient_factor,
                    const DeviceAdamTile& tile) override {
    PENSTOCK_TRY_ASSIGN(const auto coefficients, adam_coefficients(config, step, gradient_factor));
    return kernels::cuda_adam_step(ordinal_, stream, coefficients,
                                   {.state = tile.state,
                                    .gradient = tile.gradient,
                                    .parameter = tile.parameter,
                                    .first_non_finite_block = tile.first_non_finite_block,
                                    .format = tile.format,
                                    .step = step,
                                    .first_element = tile.first_element});
  }

 private:
  const int ordinal_;
};

}  // namespace

Result<std::unique_ptr<DeviceAdam>> make_cuda_device_adam(int ordinal) {
  PENSTOCK_TRY(kernels::load_cuda_adam(ordinal));
  return std::make_unique<CudaDeviceAdam>(ordinal);
}

}  // namespace penstock::cpu_adam
