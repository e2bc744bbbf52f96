#include "cpu_adam/adam_coefficients.hpp"
#include <penstock/cpu_adam/adam.hpp>

#include "cpu_adam/check_hyperparameters.hpp"
#include "kernels/floating_point_mode.hpp"

#include <algorithm>
#include <cmath>

namespace penstock::cpu_adam {

namespace {

constexpr const char* operation = "adam_coefficients";

Result<void> validate(const AdamConfig& config, std::uint64_t step, float gradient_factor) {
  PENSTOCK_TRY(detail::check_step(operation, step));
  PENSTOCK_TRY(detail::check_not_negative(operation, "learning_rate", config.learning_rate));
  PENSTOCK_TRY(detail::check_beta(operation, "beta1", config.beta1));
  PENSTOCK_TRY(detail::check_beta(operation, "beta2", config.beta2));
  PENSTOCK_TRY(detail::check_not_negative(operation, "epsilon", config.epsilon));
  if (config.decay_mode > AdamDecay::decoupled) {
    return Error::invalid_argument(operation)
        .object("decay_mode")
        .wanted("an enumerator")
        .got(unsigned(config.decay_mode));
  }
  PENSTOCK_TRY(detail::check_not_negative(operation, "weight_decay", config.weight_decay));
  return detail::check_finite(operation, "gradient_factor", gradient_factor);
}

}  // namespace

Result<kernels::AdamCoefficients> adam_coefficients(const AdamConfig& config, std::uint64_t step,
                                                    float gradient_factor) {
  const kernels::DefaultFloatingPointMode mode;  // in another one, a subnormal epsilon could be read as 0
  PENSTOCK_TRY(validate(config, step, gradient_factor));

  const double beta1 = config.beta1, beta2 = config.beta2, learning_rate = config.learning_rate;
  const double t = static_cast<double>(step);
  const double correction1 = config.bias_correction ? 1.0 - std::pow(beta1, t) : 1.0;
  const double correction2 = config.bias_correction ? 1.0 - std::pow(beta2, t) : 1.0;
  const AdamDecay decay_mode = config.weight_decay == 0.0f ? AdamDecay::none : config.decay_mode;
  const double decay = config.decay_mode == AdamDecay::decoupled ? -learning_rate * config.weight_decay
                                                                 : double{config.weight_decay};
  return kernels::AdamCoefficients{
      .gradient_factor = gradient_factor,
      .beta1 = config.beta1,
      .one_minus_beta1 = static_cast<float>(1.0 - beta1),
      .beta2 = config.beta2,
      .one_minus_beta2 = static_cast<float>(1.0 - beta2),
      .denominator_factor = static_cast<float>(1.0 / std::sqrt(correction2)),
      .epsilon = std::max(config.epsilon, epsilon_min),
      .decay = static_cast<float>(decay),
      .step_factor = static_cast<float>(-learning_rate / correction1),
      .decay_mode = decay_mode,
  };
}

}  // namespace penstock::cpu_adam
