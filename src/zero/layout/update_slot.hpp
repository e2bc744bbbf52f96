#pragma once

#include <penstock/zero/config/config.hpp>
#include "zero/layout/tiles.hpp"

#include <cstdint>

namespace penstock::zero {

/// The places of a tile's parts in a slot of device memory, through which it passes when the device updates it. All are
/// multiples of 256 bytes from the slot's first byte, where the tile's state is.
struct UpdateSlot {
  ByteCount gradient, parameter, first_non_finite_block;
  ByteCount size;

  static constexpr Alignment alignment{256};
  /// The bytes of first_non_finite_block.
  static constexpr ByteCount result{sizeof(std::uint64_t)};

  /// Of tiles of at most `elements` elements. Errors: those of cpu_adam::tile_bytes().
  [[nodiscard]] static Result<UpdateSlot> of(const Config& config, ElementCount elements) {
    const cpu_adam::StateFormat format = tile_format(config.penstock.state_format, config.dtype);
    PENSTOCK_TRY_ASSIGN(const ByteCount state, cpu_adam::tile_bytes(format, elements));
    UpdateSlot slot;
    slot.gradient = round_up(state, alignment);
    slot.parameter = slot.gradient + round_up(size_of(config.grad_accum_dtype) * elements.value(), alignment);
    slot.first_non_finite_block =
        slot.parameter + round_up(size_of(config.dtype) * elements.value(), alignment);
    slot.size = slot.first_non_finite_block + round_up(result, alignment);
    return slot;
  }
};

}  // namespace penstock::zero
