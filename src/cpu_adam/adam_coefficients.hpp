#pragma once

#include "kernels/adam_coefficients.hpp"

#include <penstock/base/result.hpp>
#include <penstock/cpu_adam/adam.hpp>

#include <cstdint>

namespace penstock::cpu_adam {

/// Added to the denominator if the configured epsilon is smaller. Elements without gradients, whose m and v are 0, then
/// keep their values instead of becoming NaNs. The denominator must also hold where m is not 0 and v is: where
/// (1 - β2) g² rounds to 0, which in fp32 it does below |g| = 2^-75 / sqrt(1 - β2), or where a v below 2^-133 is
/// rounded to 0 in bf16. There |m| is below 2^-64 (in fp32 up to β2 = 1 - 2^-22), so that the ratio is at most about 1,
/// as it is for other gradients. Roots of v from 2^-39 are so much larger that adding 2^-64 does not change a bit of
/// them.
inline constexpr float epsilon_min = 0x1p-64f;

/// The factors of step number `step`, counted from 1. A pure function. The update multiplies the gradient by
/// `gradient_factor`, (1 / loss scale) × clip factor, before everything else.
///
/// Errors: invalid_argument, naming the argument: step 0, a beta outside [0, 1), a negative learning
/// rate, epsilon or weight decay, a value that is not finite.
[[nodiscard]] Result<kernels::AdamCoefficients> adam_coefficients(const AdamConfig& config,
                                                                  std::uint64_t step, float gradient_factor);

}  // namespace penstock::cpu_adam
