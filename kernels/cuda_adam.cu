#include <penstock/kernels/cuda_adam.hpp>

#include "kernels/adam_formula.hpp"
#include "kernels/cuda_launch.hpp"
#include "kernels/operands.hpp"

namespace penstock::kernels {

namespace {

using BlockNumber = unsigned long long;  // what atomicMin takes

template <class Gradient, class Parameter>
__global__ void adam_kernel(AdamCoefficients coefficients, float* state, const Gradient* gradient,
                            Parameter* parameter, BlockNumber* first_non_finite_block, std::uint64_t count) {
  const AdamOperands<float> operands(coefficients);
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (auto i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const std::uint64_t block = i / adam_block_elements, first = block * adam_block_elements;
    const std::uint64_t length = min(adam_block_elements, count - first);
    float* const p = state + 3 * first + (i - first);
    float* const m = p + length;
    float* const v = m + length;
    adam_update<ScalarLane>(coefficients.decay_mode, operands, widen(gradient[i]), *p, *m, *v);
    parameter[i] = narrow<Parameter>(*p);
    Largest<ScalarLane> largest;
    largest.add_master(*p);
    largest.add_moments(*m, *v);
    if (max(largest.p, largest.v) >= not_finite) atomicMin(first_non_finite_block, BlockNumber{block});
  }
}

Result<void> check(const DeviceAdamTile& tile) {
  constexpr const char* operation = "cuda_adam_step";
  const ByteRange state = ByteRange::of(tile.state), gradient = ByteRange::of(tile.gradient.bytes),
                  parameter = ByteRange::of(tile.parameter.bytes),
                  flag = ByteRange::of(tile.first_non_finite_block);
  PENSTOCK_TRY(check_operand(operation, "gradient", gradient, tile.gradient.dtype));
  PENSTOCK_TRY(check_operand(operation, "parameter", parameter, tile.parameter.dtype));
  PENSTOCK_TRY(check_operand(operation, "state", state, DType::fp32));
  const ElementCount count = tile.gradient.count();
  PENSTOCK_TRY(check_same_count(operation, "parameter", count, tile.parameter.count()));
  PENSTOCK_TRY(check_same_count(operation, "state", count * 3, ElementCount(state.size.value() / 4)));
  if (flag.size != ByteCount(sizeof(BlockNumber)) || flag.address % alignof(BlockNumber) != 0) {
    return Error::invalid_argument(operation)
        .object("first_non_finite_block")
        .wanted("8 B at a multiple of 8 B")
        .got(flag.size);
  }
  PENSTOCK_TRY(check_apart(operation, "gradient and state", gradient, state));
  PENSTOCK_TRY(check_apart(operation, "gradient and parameter", gradient, parameter));
  return check_apart(operation, "parameter and state", parameter, state);
}

}  // namespace

Result<void> cuda_adam_step(int device, StreamHandle stream, const AdamCoefficients& coefficients,
                            const DeviceAdamTile& tile) {
  constexpr const char* operation = "cuda_adam_step";
  PENSTOCK_TRY(check(tile));
  auto* flag = reinterpret_cast<BlockNumber*>(tile.first_non_finite_block.address());
  {
    const CurrentDevice current(device);
    PENSTOCK_TRY(check_cuda(operation, current.status()));
    PENSTOCK_TRY(check_cuda(operation, cudaMemsetAsync(flag, 0xff, sizeof(*flag), cuda_stream(stream))));
  }
  const std::uint64_t count = tile.gradient.count().value();
  return launch_on(operation, device, count, [&](unsigned grid) {
    with_device_elements(tile.gradient, [&](const auto* gradient) {
      with_device_elements(tile.parameter, [&](auto* parameter) {
        adam_kernel<<<grid, threads_per_block, 0, cuda_stream(stream)>>>(
            coefficients, reinterpret_cast<float*>(tile.state.address()), gradient, parameter, flag, count);
      });
    });
  });
}

}  // namespace penstock::kernels
