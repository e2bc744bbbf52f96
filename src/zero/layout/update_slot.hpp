#pragma once

#include <penstock/base/compute.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/layout/memory_plan.hpp>
#include "zero/layout/tiles.hpp"

#include <algorithm>
#include <cstdint>

namespace penstock::zero {

/// The places of a tile's parts in a slot of device memory, through which it passes when the device updates it: those
/// that are not kept there. All are multiples of 256 bytes from the slot's first byte, where the tile's state is.
struct UpdateSlot {
  ByteCount gradient, parameter, first_non_finite_block;
  ByteCount size;

  static constexpr Alignment alignment{256};
  /// The bytes of first_non_finite_block.
  static constexpr ByteCount result{sizeof(std::uint64_t)};

  /// Of tiles of at most `elements` elements. Precondition: `plan` has the bytes of states that pass through the slots.
  /// Errors: those of cpu_adam::tile_bytes().
  [[nodiscard]] static Result<UpdateSlot> of(const MemoryPlan& plan, const Config& config,
                                             ElementCount elements) {
    const cpu_adam::TileLayout format = tile_layout(config);
    PENSTOCK_TRY_ASSIGN(const ByteCount state, cpu_adam::tile_bytes(format, elements));
    const auto passing = [&](bool is_kept, ByteCount bytes) {
      return is_kept ? ByteCount() : round_up(bytes, alignment);
    };
    UpdateSlot slot;
    slot.gradient = passing(plan.update.streamed.is_zero(), state);
    slot.parameter = slot.gradient +
                     passing(plan.gradients_on_device, size_of(config.grad_accum_dtype) * elements.value());
    slot.first_non_finite_block =
        slot.parameter + passing(plan.shards_on_device, size_of(config.dtype) * elements.value());
    slot.size = slot.first_non_finite_block + round_up(result, alignment);
    return slot;
  }
};

/// The places of the parts of a piece in host memory, through which what is kept on the device is copied for host code:
/// states, and parameters where these are kept too. Both are multiples of 256 bytes.
struct HostPiece {
  ElementCount elements;  ///< a multiple of block_elements, or all of a tile
  ByteCount parameter;
  ByteCount size;  ///< zero if nothing is kept

  /// Bounds the memory, and gives each of 16 workers a block.
  static constexpr ElementCount elements_max = cpu_adam::block_elements * 16;

  /// Of tiles of at most `longest` elements; 0: there are none, only frozen parameters. Errors: those of
  /// cpu_adam::tile_bytes().
  [[nodiscard]] static Result<HostPiece> of(const MemoryPlan& plan, const Config& config,
                                            ElementCount longest) {
    const bool has_tiles = !longest.is_zero();
    HostPiece piece{.elements = has_tiles ? std::min(elements_max, longest) : elements_max};
    if (plan.tiles_kept == 0 && !plan.shards_on_device) return piece;
    const cpu_adam::TileLayout format = tile_layout(config);
    PENSTOCK_TRY_ASSIGN(const ByteCount state,
                        cpu_adam::tile_bytes(format, has_tiles ? piece.elements : ElementCount()));
    const ByteCount parameter = size_of(config.dtype) * piece.elements.value();
    piece.parameter = round_up(state, UpdateSlot::alignment);
    piece.size =
        piece.parameter + (plan.shards_on_device ? round_up(parameter, UpdateSlot::alignment) : ByteCount());
    return piece;
  }
};

/// The bytes of Compute::square_sums() of a shard.
[[nodiscard]] constexpr ByteCount partials_bytes(ElementCount shard) {
  return ByteCount(ceil_divide(shard.value(), Compute::square_sum_block) * sizeof(double));
}

}  // namespace penstock::zero
