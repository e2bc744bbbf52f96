#pragma once

#include <penstock/cpu_adam/optimizer_tile.hpp>

#include <functional>
#include <span>

namespace penstock::cpu_adam {

/// One block of a tile in fp32, one value an element; empty for a moment that the optimizer does not keep.
struct Fp32Block {
  ElementCount first;               ///< its first element, from the tile's start
  std::span<const float> gradient;  ///< times gradient_factor
  std::span<float> master, first_moment, second_moment;
};
/// Updates master and moments of a block. Does not throw.
using BlockFunction = std::function<Result<void>(const Fp32Block&)>;

/// Whether update_fp32_blocks() takes the tile. Errors: those of optimizer_step() that concern the tile; unsupported,
/// for 16-bit parameters that are the masters.
[[nodiscard]] Result<void> check_fp32_tile(const char* operation, const OptimizerTile& tile);

/// Updates the blocks of a tile by `update`, which the workers call for different blocks at the same time; then rounds
/// the parameter to nearest. Precondition: check_fp32_tile().
///
/// Errors: that of `update`, of the first block if several fail. No block begins after it, and the tile is updated in
/// part.
[[nodiscard]] Result<UpdateOutcome> update_fp32_blocks(const BlockFunction& update, float gradient_factor,
                                                       const OptimizerTile& tile,
                                                       const UpdateExecution& execution);

}  // namespace penstock::cpu_adam
