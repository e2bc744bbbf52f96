#pragma once

#include <penstock/cpu_adam/optimizer_tile.hpp>

#include <functional>
#include <span>

namespace penstock::cpu_adam {

/// One block of a tile in fp32, one value an element; empty for a moment that the optimizer does not keep.
struct CustomBlock {
  ElementCount first;               ///< its first element, from the tile's start
  std::span<const float> gradient;  ///< times gradient_factor
  std::span<float> master, first_moment, second_moment;
};
/// Updates master and moments of a block. Does not throw.
using BlockFunction = std::function<Result<void>(const CustomBlock&)>;

/// Updates a tile of a custom optimizer by `update`, which the workers call for different blocks at the same time;
/// then rounds the parameter to nearest. Otherwise as optimizer_step(): one pass, with the observer and the outcome.
///
/// Errors: those of optimizer_step() that concern the tile; unsupported, for 16-bit parameters that are the masters;
/// that of `update`, of the first block if several fail. No block begins after it, and the tile is updated in part.
[[nodiscard]] Result<UpdateOutcome> custom_step(const BlockFunction& update, float gradient_factor,
                                                const OptimizerTile& tile, const UpdateExecution& execution);

}  // namespace penstock::cpu_adam
