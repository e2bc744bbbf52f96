#include "zero/engine/step_arithmetic.hpp"

#include "base/number_text.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace penstock::zero {

GradientNorm gradient_norm(const Config& config, double squares) {
  GradientNorm gradients{.norm = std::sqrt(squares) / config.loss_scale};
  // DeepSpeed's combined scale: max(1, (norm + 1e-6) / clip).
  const double clip = config.gradient_clipping;
  if (clip > 0) gradients.clip_factor = 1.0 / std::max(1.0, (gradients.norm + 1e-6) / clip);
  return gradients;
}

float gradient_factor(const Config& config, double clip_factor) {
  return static_cast<float>(clip_factor / config.loss_scale);
}

std::string reason_to_skip(const Config& config, const GradientNorm& gradients) {
  if (!std::isfinite(gradients.norm)) return "the gradient norm is not finite";
  const double update_norm =
      gradients.norm * config.loss_scale * gradient_factor(config, gradients.clip_factor);
  if (update_norm * update_norm <= std::numeric_limits<float>::max()) return {};
  return "the gradient norm " + number_text(gradients.norm) +
         " is so large that the square of a gradient may overflow fp32";
}

cpu_adam::AdamConfig adam_config(const OptimizerConfig& optimizer, bool group_decays,
                                 std::optional<float> learning_rate) {
  return {.learning_rate = learning_rate.value_or(optimizer.learning_rate),
          .beta1 = optimizer.betas[0],
          .beta2 = optimizer.betas[1],
          .epsilon = optimizer.epsilon,
          .weight_decay = group_decays ? optimizer.weight_decay : 0.0f,
          .decay_mode = optimizer.decay_mode,
          .bias_correction = optimizer.bias_correction};
}

}  // namespace penstock::zero
