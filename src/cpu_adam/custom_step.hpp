#pragma once

#include "cpu_adam/fp32_blocks.hpp"

namespace penstock::cpu_adam {

/// Updates a tile of a custom optimizer by `update`, as update_fp32_blocks(). Otherwise as optimizer_step(): one pass,
/// with the observer and the outcome.
///
/// Errors: those of check_fp32_tile() and of update_fp32_blocks().
[[nodiscard]] Result<UpdateOutcome> custom_step(const BlockFunction& update, float gradient_factor,
                                                const OptimizerTile& tile, const UpdateExecution& execution);

}  // namespace penstock::cpu_adam
