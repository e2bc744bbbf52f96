#pragma once

#include "c/handles.hpp"

#include <penstock/c/optimizer.h>
#include <penstock/cpu_adam/optimizers.hpp>

// What the caller has given to an update, on the host or on a device.
namespace penstock::c {

/// Addresses are taken as they are. The gradient may be missing where a function ignores it.
///
/// Errors: invalid_argument, naming the member.
[[nodiscard]] Result<cpu_adam::OptimizerTile> read_tile(const char* function, const penstock_tile* given);
/// Errors: those of read_struct().
[[nodiscard]] Result<cpu_adam::Hyperparameters> read_hyperparameters(const char* function,
                                                                     const penstock_hyperparameters* given,
                                                                     cpu_adam::Optimizer optimizer);

}  // namespace penstock::c
