#include "cpu_adam/step_coefficients.hpp"

#include "cpu_adam/adam_coefficients.hpp"
#include "cpu_adam/check_hyperparameters.hpp"
#include "kernels/floating_point_mode.hpp"

#include <algorithm>

namespace penstock::cpu_adam {

namespace {

Result<kernels::AdamCoefficients> coefficients(const AdamConfig& config, std::uint64_t step,
                                               float gradient_factor) {
  return adam_coefficients(config, step, gradient_factor);
}

Result<kernels::AdamCoefficients> coefficients(const LionConfig& config, std::uint64_t step,
                                               float gradient_factor) {
  constexpr const char* operation = "lion_coefficients";
  PENSTOCK_TRY(detail::check_step(operation, step));
  PENSTOCK_TRY(detail::check_not_negative(operation, "learning_rate", config.learning_rate));
  PENSTOCK_TRY(detail::check_beta(operation, "beta1", config.beta1));
  PENSTOCK_TRY(detail::check_beta(operation, "beta2", config.beta2));
  PENSTOCK_TRY(detail::check_not_negative(operation, "weight_decay", config.weight_decay));
  PENSTOCK_TRY(detail::check_finite(operation, "gradient_factor", gradient_factor));

  kernels::AdamCoefficients c{};
  c.gradient_factor = gradient_factor;
  c.beta1 = config.beta1;
  c.one_minus_beta1 = static_cast<float>(1.0 - double{config.beta1});
  c.beta2 = config.beta2;
  c.one_minus_beta2 = static_cast<float>(1.0 - double{config.beta2});
  // Without a decay +0, not -0: so that the product has the sign of the master, and a master of -0 keeps its own.
  if (config.weight_decay > 0)
    c.decay = static_cast<float>(-double{config.learning_rate} * config.weight_decay);
  c.step_factor = -config.learning_rate;
  return c;
}

Result<kernels::AdamCoefficients> coefficients(const AdagradConfig& config, std::uint64_t step,
                                               float gradient_factor) {
  constexpr const char* operation = "adagrad_coefficients";
  PENSTOCK_TRY(detail::check_step(operation, step));
  PENSTOCK_TRY(detail::check_not_negative(operation, "learning_rate", config.learning_rate));
  PENSTOCK_TRY(detail::check_not_negative(operation, "epsilon", config.epsilon));
  PENSTOCK_TRY(detail::check_not_negative(operation, "weight_decay", config.weight_decay));
  PENSTOCK_TRY(detail::check_finite(operation, "gradient_factor", gradient_factor));

  kernels::AdamCoefficients c{};
  c.gradient_factor = gradient_factor;
  c.epsilon = std::max(config.epsilon, epsilon_min);
  c.decay = config.weight_decay;
  c.step_factor = -config.learning_rate;
  return c;
}

}  // namespace

Result<kernels::AdamCoefficients> step_coefficients(const Hyperparameters& config, std::uint64_t step,
                                                    float gradient_factor) {
  const kernels::DefaultFloatingPointMode mode;  // in another one, a subnormal epsilon could be read as 0
  return std::visit([&](const auto& one) { return coefficients(one, step, gradient_factor); }, config);
}

}  // namespace penstock::cpu_adam
