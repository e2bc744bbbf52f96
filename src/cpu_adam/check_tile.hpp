#pragma once

#include <penstock/cpu_adam/adam.hpp>

// What the boundary refuses. Each error names the argument at fault.
namespace penstock::cpu_adam::detail {

/// State: format, length, alignment.
Result<void> check_state(const char* operation, const AdamTile& tile);
/// State and parameter, and that they stand apart.
Result<void> check_tile(const char* operation, const AdamTile& tile);
/// The gradient, against a tile that check_tile passed.
Result<void> check_gradient(const char* operation, const AdamTile& tile);
/// Initial values, against a tile that check_tile passed.
Result<void> check_initial(const char* operation, ConstHostSpan initial, DType dtype, const AdamTile& tile);
Result<void> check_isa(const char* operation, Isa isa);

}  // namespace penstock::cpu_adam::detail
