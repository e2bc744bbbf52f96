#include "cpu_adam/adam_coefficients.hpp"
#include <penstock/cpu_adam/adam.hpp>

#include "base/number_text.hpp"
#include "kernels/floating_point_mode.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace penstock::cpu_adam {

namespace {

Result<void> check(bool good, const char* name, const char* wanted, float got) {
  if (good) return ok();
  return Error::invalid_argument("adam_coefficients").object(name).wanted(wanted).got(number_text(got));
}

Result<void> validate(const AdamConfig& config, std::uint64_t step, float gradient_factor) {
  const auto is_decay_rate = [](float beta) { return beta >= 0.0f && beta < 1.0f; };
  const auto is_finite_and_not_negative = [](float x) { return x >= 0.0f && std::isfinite(x); };
  if (step == 0) {
    return Error::invalid_argument("adam_coefficients")
        .object("step")
        .reason("steps count from 1")
        .wanted("1 or more")
        .got(step);
  }
  PENSTOCK_TRY(check(is_finite_and_not_negative(config.learning_rate), "learning_rate",
                     "finite and not negative", config.learning_rate));
  PENSTOCK_TRY(check(is_decay_rate(config.beta1), "beta1", "in [0, 1)", config.beta1));
  PENSTOCK_TRY(check(is_decay_rate(config.beta2), "beta2", "in [0, 1)", config.beta2));
  PENSTOCK_TRY(check(is_finite_and_not_negative(config.epsilon), "epsilon", "finite and not negative",
                     config.epsilon));
  if (config.decay_mode > AdamDecay::decoupled) {
    return Error::invalid_argument("adam_coefficients")
        .object("decay_mode")
        .wanted("an enumerator")
        .got(unsigned(config.decay_mode));
  }
  PENSTOCK_TRY(check(is_finite_and_not_negative(config.weight_decay), "weight_decay",
                     "finite and not negative", config.weight_decay));
  return check(std::isfinite(gradient_factor), "gradient_factor", "finite", gradient_factor);
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
