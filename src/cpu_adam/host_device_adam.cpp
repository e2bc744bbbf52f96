#include "cpu_adam/host_device_adam.hpp"

#include "cpu_adam/adam_coefficients.hpp"
#include "cpu_adam/check_tile.hpp"
#include "kernels/operands.hpp"

#include <penstock/base/check.hpp>

#include <cstring>

namespace penstock::cpu_adam {

namespace {

constexpr const char* operation = "DeviceAdam::step";

HostSpan on_host(DeviceSpan span) {
  return {reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(span.address())), span.size()};
}

AdamTile on_host(const DeviceAdamTile& tile) {
  return {.state = on_host(tile.state),
          .gradient = on_host(tile.gradient.bytes),
          .parameter = on_host(tile.parameter.bytes),
          .elements = tile.gradient.count(),
          .gradient_dtype = tile.gradient.dtype,
          .parameter_dtype = tile.parameter.dtype,
          .format = tile.format,
          .first_element = tile.first_element};
}

Result<void> check(StreamHandle stream, const DeviceAdamTile& tile) {
  if (stream.host_queue() == nullptr) {
    return Error::invalid_argument(operation).object("stream").reason("a default StreamHandle is no stream");
  }
  const auto flag = kernels::ByteRange::of(tile.first_non_finite_block);
  if (flag.size != ByteCount(sizeof(std::uint64_t)) || flag.address == 0 ||
      flag.address % alignof(std::uint64_t) != 0) {
    return Error::invalid_argument(operation)
        .object("first_non_finite_block")
        .wanted("8 B at a multiple of 8 B")
        .got(to_string(flag.size) + " at " + std::to_string(flag.address));
  }
  const auto gradient = kernels::ByteRange::of(tile.gradient.bytes);
  PENSTOCK_TRY(kernels::check_operand(operation, "gradient", gradient, tile.gradient.dtype));
  PENSTOCK_TRY(detail::check_tile(operation, on_host(tile)));
  PENSTOCK_TRY(detail::check_gradient(operation, on_host(tile)));
  for (const DeviceSpan span : {tile.state, tile.gradient.bytes, tile.parameter.bytes}) {
    PENSTOCK_TRY(kernels::check_apart(operation, "first_non_finite_block and the tile", flag,
                                      kernels::ByteRange::of(span)));
  }
  return ok();
}

class HostDeviceAdam final : public DeviceAdam {
 public:
  Result<void> step(StreamHandle stream, const AdamConfig& config, std::uint64_t step, float gradient_factor,
                    const DeviceAdamTile& tile) override {
    PENSTOCK_TRY(check(stream, tile));
    PENSTOCK_TRY(adam_coefficients(config, step, gradient_factor));
    const auto update = [config, step, gradient_factor, tile] {
      const auto outcome = adam_step(config, step, gradient_factor, on_host(tile));
      PENSTOCK_CHECK(outcome);  // checked above
      const std::uint64_t block = outcome->first_non_finite_block.value_or(~std::size_t{0});
      std::memcpy(on_host(tile.first_non_finite_block).data(), &block, sizeof(block));
    };
    const ByteCount bytes = tile.state.size() * 2 + tile.gradient.bytes.size() + tile.parameter.bytes.size();
    stream.host_queue()->enqueue(update, {.bytes = bytes});
    return ok();
  }
};

}  // namespace

std::unique_ptr<DeviceAdam> make_host_device_adam() {
  return std::make_unique<HostDeviceAdam>();
}

}  // namespace penstock::cpu_adam
