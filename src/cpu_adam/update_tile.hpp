#pragma once

#include "cpu_adam/adam_kernel.hpp"

#include <penstock/cpu_adam/optimizer_tile.hpp>

#include <cstdint>
#include <span>

namespace penstock::cpu_adam::detail {

/// Checks a tile and updates it block by block; the pieces are of the tile's optimizer, and the last one ends with the
/// tile. Contains all that optimizers have in common: workers, the observer, the outcome.
///
/// Errors: those of adam_step() that concern the tile and the execution.
Result<UpdateOutcome> update_tile(const char* operation, std::span<const Piece> pieces, std::uint64_t step,
                                  const OptimizerTile& tile, const UpdateExecution& execution);

}  // namespace penstock::cpu_adam::detail
