#include "kernels/cuda_adam.hpp"

#include "kernels/adam_element.hpp"
#include "kernels/cuda_launch.hpp"
#include "kernels/operands.hpp"

namespace penstock::kernels {

namespace {

using BlockNumber = unsigned long long;  // the type that atomicMin takes

template <class Gradient, class Tile>
__global__ void adam_kernel(AdamCoefficients coefficients, Tile tile, const Gradient* gradient,
                            BlockNumber* first_non_finite_block, std::uint64_t count) {
  const AdamOperands<ScalarLane> operands(coefficients);
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (auto i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const std::uint64_t block = i / adam_block_elements, first = block * adam_block_elements;
    const std::uint64_t length = min(adam_block_elements, count - first);
    if (!tile.update(coefficients, operands, widen(gradient[i]), {i, first, length})) {
      atomicMin(first_non_finite_block, BlockNumber{block});
    }
  }
}

Result<void> check(const DeviceAdamTile& tile) {
  constexpr const char* operation = "cuda_adam_step";
  if (tile.format != StateFormat::fp32 && tile.format != StateFormat::split) {
    return Error::unsupported(operation)
        .object("format")
        .wanted("fp32 or split; the other formats have no CUDA kernel")
        .got(std::string(to_string(tile.format)));
  }
  const ByteRange state = ByteRange::of(tile.state), gradient = ByteRange::of(tile.gradient.bytes),
                  parameter = ByteRange::of(tile.parameter.bytes),
                  flag = ByteRange::of(tile.first_non_finite_block);
  PENSTOCK_TRY(check_operand(operation, "gradient", gradient, tile.gradient.dtype));
  PENSTOCK_TRY(check_operand(operation, "parameter", parameter, tile.parameter.dtype));
  if (state.address % alignof(float) != 0) {
    return Error::invalid_argument(operation)
        .object("state")
        .wanted("a multiple of 4 B")
        .got("a misaligned one");
  }
  const ElementCount count = tile.gradient.count();
  PENSTOCK_TRY(check_same_count(operation, "parameter", count, tile.parameter.count()));
  const bool split = tile.format == StateFormat::split;
  if (split && tile.parameter.dtype != DType::bf16) {
    return Error::invalid_argument(operation)
        .object("parameter")
        .reason("it is the upper half of the master in state format split")
        .wanted(std::string(to_string(DType::bf16)))
        .got(std::string(to_string(tile.parameter.dtype)));
  }
  const ByteCount wanted = ByteCount(split ? 10 : 12) * count.value();
  if (state.size != wanted) {
    return Error::invalid_argument(operation).object("state").wanted(wanted).got(state.size);
  }
  if (flag.size != ByteCount(sizeof(BlockNumber)) || flag.address % alignof(BlockNumber) != 0) {
    return Error::invalid_argument(operation)
        .object("first_non_finite_block")
        .wanted("8 B at a multiple of 8 B")
        .got(to_string(flag.size) + " at " + std::to_string(flag.address));
  }
  PENSTOCK_TRY(check_apart(operation, "first_non_finite_block and state", flag, state));
  PENSTOCK_TRY(check_apart(operation, "first_non_finite_block and parameter", flag, parameter));
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
  PENSTOCK_TRY(use_device(operation, device));
  PENSTOCK_TRY(check_cuda(operation, cudaMemsetAsync(flag, 0xff, sizeof(*flag), cuda_stream(stream))));
  const std::uint64_t count = tile.gradient.count().value();
  return launch_on(operation, device, count, [&](unsigned grid) {
    with_device_elements(tile.gradient, [&](const auto* gradient) {
      const auto launch = [&](auto elements) {
        adam_kernel<<<grid, threads_per_block, 0, cuda_stream(stream)>>>(coefficients, elements, gradient,
                                                                         flag, count);
      };
      with_device_elements(tile.parameter, [&]<class Parameter>(Parameter* parameter) {
        const auto state = static_cast<std::uintptr_t>(tile.state.address());
        if (tile.format == StateFormat::fp32) {
          launch(Fp32Tile<Parameter>{reinterpret_cast<float*>(state), parameter});
        } else if constexpr (std::is_same_v<Parameter, Bf16>) {
          launch(SplitTile{reinterpret_cast<U8*>(state), parameter});
        }
      });
    });
  });
}

}  // namespace penstock::kernels
