#pragma once

#include "kernels/adam_coefficients.hpp"

#include <penstock/base/result.hpp>
#include <penstock/cpu_adam/adam.hpp>

#include <cstdint>

namespace penstock::cpu_adam {

/// The factors of step number `step`, counted from 1. A pure function. The update multiplies the gradient by
/// `gradient_factor`, (1 / loss scale) × clip factor, before everything else.
///
/// Errors: invalid_argument, naming the argument: step 0, a beta outside [0, 1), epsilon not above 0, a
/// negative learning rate or weight decay, a value that is not finite.
[[nodiscard]] Result<kernels::AdamCoefficients> adam_coefficients(const AdamConfig& config,
                                                                  std::uint64_t step, float gradient_factor);

}  // namespace penstock::cpu_adam
