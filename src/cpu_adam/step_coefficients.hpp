#pragma once

#include "kernels/adam_coefficients.hpp"

#include <penstock/base/result.hpp>
#include <penstock/cpu_adam/optimizers.hpp>

#include <cstdint>

namespace penstock::cpu_adam {

/// adam_coefficients() for the hyperparameters of any optimizer. Factors that its formula does not use are 0.
///
/// Errors: invalid_argument, naming the argument, as adam_coefficients().
[[nodiscard]] Result<kernels::AdamCoefficients> step_coefficients(const Hyperparameters& config,
                                                                  std::uint64_t step, float gradient_factor);

}  // namespace penstock::cpu_adam
