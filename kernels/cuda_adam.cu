#include "kernels/cuda_adam.hpp"

#include "kernels/cuda_adam_states.hpp"
#include "kernels/cuda_launch.hpp"
#include "kernels/cuda_q8_state.hpp"
#include "kernels/operands.hpp"

namespace penstock::kernels {

namespace {

using BlockNumber = unsigned long long;  // the type that atomicMin takes

template <class Lane, class Gradient>
__device__ typename Lane::F lane_of(const Gradient* gradient) {
  if constexpr (Lane::size == 1) {
    return widen(gradient[0]);
  } else {
    return {widen(gradient[0]), widen(gradient[1])};
  }
}

/// Updates a run, as many elements at a time as the warp's Slots have. All of these are loaded before the first is
/// computed. Returns whether the thread's elements are finite.
template <class Slots, class Format, class Gradient>
__device__ bool update_run(const Run& run, AdamDecay decay, const Coefficients& coefficients,
                           const TileOperands& tile, const Gradient* gradients) {
  typename Format::Scales scales(tile, run);
  typename Format::template State<Slots> state(tile, run, scales);
  Gradient gradient[Slots::count];
  const auto load = [&](const Slots& slots) {
    slots.load(gradients + run.block_first + run.begin, gradient);
    state.load(slots);
  };
  constexpr bool loads_once = Slots::warp_elements == q8_run;
  if constexpr (Format::Scales::exist) {
#pragma unroll 1
    for (Slots slots{0, run.count}; slots.begin < run.count; slots.begin += Slots::warp_elements) {
      load(slots);
      scales.add(slots, decay, state, gradient);
    }
    scales.renew(decay, coefficients);
  }
  using Lane = typename Format::Lane;
  Largest<Lane> largest;
#pragma unroll 1
  for (Slots slots{0, run.count}; slots.begin < run.count; slots.begin += Slots::warp_elements) {
    if (!Format::Scales::exist || !loads_once) load(slots);
#pragma unroll
    for (unsigned k = 0; k < Slots::count; k += Lane::size) {
      if (slots.holds(k)) state.update(slots, k, decay, coefficients, lane_of<Lane>(&gradient[k]), largest);
    }
    if constexpr (requires { state.divide(); }) {
      if (largest.most >= not_finite) state.masters.make_storable();
      state.divide();
    }
    state.store(slots);
  }
  return largest.most < not_finite;
}

/// Each warp updates one run after the other.
template <class Gradient, class Format>
__global__ void __launch_bounds__(threads_per_block, three_blocks)
    adam_kernel(AdamCoefficients coefficients, TileOperands tile, const Gradient* gradient,
                BlockNumber* first_non_finite_block, std::uint64_t count) {
  using Full = Slots<Format::group, adam_slots, true>;
  using Rest = Slots<Format::narrow_group, Format::narrow_group, false>;
  const Coefficients operands(coefficients);
  const bool wide = are_wide(tile.state, tile.parameter, gradient);
  const std::uint64_t runs = (count + q8_run - 1) / q8_run;
  for (std::uint64_t number = first_warp(); number < runs; number += warps()) {
    const Run run(number, count);
    const bool finite =
        wide && run.is_full()
            ? update_run<Full, Format>(run, coefficients.decay_mode, operands, tile, gradient)
            : update_run<Rest, Format>(run, coefficients.decay_mode, operands, tile, gradient);
    if (!finite) atomicMin(first_non_finite_block, BlockNumber{run.block});
  }
}

/// Calls body with the tile's format.
template <class Body>
void with_format(const DeviceAdamTile& tile, Body&& body) {
  switch (tile.format) {
    case StateFormat::fp32:
      return with_device_elements(tile.parameter,
                                  [&]<class Parameter>(Parameter*) { body(Fp32Format<Parameter>()); });
    case StateFormat::moments:
      return with_device_elements(tile.parameter,
                                  [&]<class Parameter>(Parameter*) { body(MomentsFormat<Parameter>()); });
    case StateFormat::moments_bf16: return body(MomentsBf16Format());
    case StateFormat::split: return body(SplitFormat());
    case StateFormat::split_bf16: return body(SplitBf16Format());
    case StateFormat::split_q8: return body(SplitQ8Format());
  }
}

Result<void> check_format(const char* operation, const DeviceAdamTile& tile) {
  if (!state_block_bytes(tile.format, 0)) {
    return Error::invalid_argument(operation)
        .object("format")
        .wanted("fp32, moments, moments_bf16, split, split_bf16 or split_q8")
        .got(static_cast<unsigned>(tile.format));
  }
  if (!takes_parameter(tile.format, tile.parameter.dtype)) {
    return Error::invalid_argument(operation)
        .object("parameter")
        .reason("it is a part of the master in state format " + std::string(to_string(tile.format)))
        .wanted("bf16")
        .got(std::string(to_string(tile.parameter.dtype)));
  }
  if (rounds_stochastically(tile.format, tile.parameter.dtype) && tile.step == 0) {
    return Error::invalid_argument(operation)
        .object("step")
        .reason("it seeds the rounding in state format " + std::string(to_string(tile.format)))
        .wanted("1 or more")
        .got(tile.step);
  }
  return ok();
}

Result<void> check_state(const char* operation, StateFormat format, ByteRange state, ElementCount elements) {
  const auto wanted = state_tile_bytes(format, elements.value());
  if (!wanted || state.size != ByteCount(*wanted)) {
    return Error::invalid_argument(operation)
        .object("state")
        .wanted(wanted ? to_string(ByteCount(*wanted)) : "a number of bytes that fits 64 bits")
        .got(state.size);
  }
  if (state.address == 0 && !state.size.is_zero()) {
    return Error::invalid_argument(operation).object("state").reason("its address is null").got(state.size);
  }
  if (const std::uint64_t alignment = state_alignment_bytes(format); state.address % alignment != 0) {
    return Error::invalid_argument(operation)
        .object("state")
        .reason("its address is not aligned")
        .wanted("a multiple of " + std::to_string(alignment) + " B")
        .got("an address " + std::to_string(state.address % alignment) + " B past a multiple");
  }
  return ok();
}

Result<void> check(const char* operation, const DeviceAdamTile& tile) {
  PENSTOCK_TRY(check_format(operation, tile));
  const ByteRange state = ByteRange::of(tile.state), gradient = ByteRange::of(tile.gradient.bytes),
                  parameter = ByteRange::of(tile.parameter.bytes),
                  flag = ByteRange::of(tile.first_non_finite_block);
  PENSTOCK_TRY(check_operand(operation, "gradient", gradient, tile.gradient.dtype));
  PENSTOCK_TRY(check_operand(operation, "parameter", parameter, tile.parameter.dtype));
  const ElementCount count = tile.gradient.count();
  PENSTOCK_TRY(check_same_count(operation, "parameter", count, tile.parameter.count()));
  PENSTOCK_TRY(check_state(operation, tile.format, state, count));
  if (flag.size != ByteCount(sizeof(BlockNumber)) || flag.address == 0 ||
      flag.address % alignof(BlockNumber) != 0) {
    return Error::invalid_argument(operation)
        .object("first_non_finite_block")
        .wanted("8 B at a multiple of 8 B, not 0")
        .got(to_string(flag.size) + " at " + std::to_string(flag.address));
  }
  PENSTOCK_TRY(check_apart(operation, "first_non_finite_block and state", flag, state));
  PENSTOCK_TRY(check_apart(operation, "first_non_finite_block and parameter", flag, parameter));
  PENSTOCK_TRY(check_apart(operation, "first_non_finite_block and gradient", flag, gradient));
  PENSTOCK_TRY(check_apart(operation, "gradient and state", gradient, state));
  PENSTOCK_TRY(check_apart(operation, "gradient and parameter", gradient, parameter));
  return check_apart(operation, "parameter and state", parameter, state);
}

}  // namespace

Result<void> load_cuda_adam(int device) {
  constexpr const char* operation = "load_cuda_adam";
  PENSTOCK_TRY(use_device(operation, device));
  KernelLoader load;
  with_each_element([&]<class Gradient>(Gradient*) {
    with_each_element([&]<class Parameter>(Parameter*) {
      load(adam_kernel<Gradient, Fp32Format<Parameter>>);
      load(adam_kernel<Gradient, MomentsFormat<Parameter>>);
    });
    load(adam_kernel<Gradient, MomentsBf16Format>);
    load(adam_kernel<Gradient, SplitFormat>);
    load(adam_kernel<Gradient, SplitBf16Format>);
    load(adam_kernel<Gradient, SplitQ8Format>);
  });
  return load.result(operation);
}

Result<void> cuda_adam_step(int device, StreamHandle stream, const AdamCoefficients& coefficients,
                            const DeviceAdamTile& tile) {
  constexpr const char* operation = "cuda_adam_step";
  PENSTOCK_TRY(check(operation, tile));
  auto* flag = reinterpret_cast<BlockNumber*>(tile.first_non_finite_block.address());
  PENSTOCK_TRY(use_device(operation, device));
  PENSTOCK_TRY(check_cuda(operation, cudaMemsetAsync(flag, 0xff, sizeof(*flag), cuda_stream(stream))));
  const std::uint64_t count = tile.gradient.count().value(), runs = ceil_divide(count, std::uint64_t{q8_run});
  const TileOperands operands{reinterpret_cast<U8*>(tile.state.address()),
                              reinterpret_cast<void*>(tile.parameter.bytes.address()), tile.step,
                              tile.first_element};
  return launch_on(operation, device, runs * warp_threads, [&](unsigned grid) {
    with_device_elements(tile.gradient, [&]<class Gradient>(const Gradient* gradient) {
      with_format(tile, [&]<class Format>(Format) {
        adam_kernel<Gradient, Format><<<grid, threads_per_block, 0, cuda_stream(stream)>>>(
            coefficients, operands, gradient, flag, count);
      });
    });
  });
}

}  // namespace penstock::kernels
