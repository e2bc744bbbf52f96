#include <penstock/c/device_optimizer.h>

#include "c/optimizer.hpp"

#include <penstock/cpu_adam/device_adam.hpp>
#include <penstock/zero/rank.hpp>

#include <cstdint>
#include <utility>
#include <variant>

struct penstock_device_adam {
  penstock::zero::Accelerator accelerator;
  bool is_host = false;
  penstock::c::HandleProcess process = {};
};

namespace {

using namespace penstock;

DeviceSpan on_device(const void* address, ByteCount bytes) {
  return {DeviceAddress(reinterpret_cast<std::uintptr_t>(address)), bytes};
}

/// Errors: invalid_argument, for a tile without a gradient; unsupported, for another optimizer.
Result<cpu_adam::DeviceAdamTile> on_device(const char* function, const cpu_adam::OptimizerTile& tile,
                                           std::uint64_t* non_finite_block) {
  if (tile.optimizer != cpu_adam::Optimizer::adam) {
    return Error::unsupported(function)
        .object("tile.optimizer")
        .wanted(std::to_string(PENSTOCK_ADAM))
        .got(std::to_string(static_cast<int>(tile.optimizer)))
        .advice("update it on the host, by penstock_tile_step()");
  }
  if (tile.gradient.empty() && !tile.elements.is_zero())
    return Error::invalid_argument(function).object("tile.gradient").reason("it is NULL");
  return cpu_adam::DeviceAdamTile{
      .state = on_device(tile.state.data(), tile.state.size()),
      .gradient = {on_device(tile.gradient.data(), tile.gradient.size()), tile.gradient_dtype},
      .parameter = {on_device(tile.parameter.data(), tile.parameter.size()), tile.parameter_dtype},
      .first_non_finite_block = on_device(non_finite_block, ByteCount(sizeof *non_finite_block)),
      .format = tile.format,
      .first_element = tile.first_element};
}

}  // namespace

penstock_error* penstock_device_adam_create(penstock_device device, std::int32_t ordinal,
                                            penstock_device_adam** adam) {
  const char* const function = __func__;
  return c::call(function, {{"adam", adam}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto kind,
                        c::enumerator<penstock_device>(function, "device", device, PENSTOCK_DEVICE_CUDA + 1));
    penstock_device_adam made{.is_host = kind == PENSTOCK_DEVICE_HOST};
    if (made.is_host) {
      made.accelerator = zero::make_host_accelerator(ByteCount());
    } else {
      PENSTOCK_TRY_ASSIGN(made.accelerator, zero::make_cuda_accelerator(ordinal));
    }
    c::give(adam, std::move(made));
    return ok();
  });
}

void penstock_device_adam_free(penstock_device_adam* adam) {
  c::end(adam);
}

penstock_error* penstock_device_adam_step(penstock_device_adam* adam, void* cuda_stream,
                                          const penstock_tile* tile,
                                          const penstock_hyperparameters* hyperparameters, std::uint64_t step,
                                          float gradient_factor, std::uint64_t* non_finite_block) {
  const char* const function = __func__;
  return c::call(function,
                 {{"adam", adam},
                  {"tile", tile},
                  {"hyperparameters", hyperparameters},
                  {"non_finite_block", non_finite_block}},
                 [&]() -> Result<void> {
                   PENSTOCK_TRY_ASSIGN(const auto given, c::read_tile(function, tile));
                   PENSTOCK_TRY_ASSIGN(const auto to, on_device(function, given, non_finite_block));
                   PENSTOCK_TRY_ASSIGN(const auto config,
                                       c::read_hyperparameters(function, hyperparameters, given.optimizer));
                   const auto update = [&](StreamHandle stream) {
                     return adam->accelerator.adam->step(stream, std::get<cpu_adam::AdamConfig>(config), step,
                                                         gradient_factor, to);
                   };
                   if (!adam->is_host) return update(StreamHandle::from_native(cuda_stream));
                   PENSTOCK_TRY_ASSIGN(const auto stream, adam->accelerator.device->create_stream());
                   PENSTOCK_TRY(update(stream->handle()));
                   return stream->synchronize();
                 });
}
