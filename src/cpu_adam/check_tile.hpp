#pragma once

#include <penstock/cpu_adam/optimizer_tile.hpp>

// Validation of the arguments of the public functions. Each error names the invalid argument.
namespace penstock::cpu_adam::detail {

/// Checks the state: layout, length, alignment.
Result<void> check_state(const char* operation, const OptimizerTile& tile);
/// Checks state and parameter, and that they do not overlap.
Result<void> check_tile(const char* operation, const OptimizerTile& tile);
/// Checks the gradient, for a tile that check_tile has accepted.
Result<void> check_gradient(const char* operation, const OptimizerTile& tile);
/// Checks the initial values, for a tile that check_tile has accepted.
Result<void> check_initial(const char* operation, ConstHostSpan initial, DType dtype,
                           const OptimizerTile& tile);
Result<void> check_isa(const char* operation, Isa isa);

}  // namespace penstock::cpu_adam::detail
