#include "zero/engine/step_arithmetic.hpp"

#include "base/number_text.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace penstock::zero {

GradientNorm gradient_norm(const Config& config, double loss_scale, double squares) {
  GradientNorm gradients{.norm = std::sqrt(squares) / loss_scale};
  // DeepSpeed's combined scale: max(1, (norm + 1e-6) / clip).
  const double clip = config.gradient_clipping;
  if (clip > 0) gradients.clip_factor = 1.0 / std::max(1.0, (gradients.norm + 1e-6) / clip);
  return gradients;
}

float gradient_factor(double loss_scale, double clip_factor) {
  return static_cast<float>(clip_factor / loss_scale);
}

std::string reason_to_skip(double loss_scale, const GradientNorm& gradients) {
  if (!std::isfinite(gradients.norm)) return "the gradient norm is not finite";
  const double update_norm = gradients.norm * loss_scale * gradient_factor(loss_scale, gradients.clip_factor);
  if (update_norm * update_norm <= std::numeric_limits<float>::max()) return {};
  return "the gradient norm " + number_text(gradients.norm) +
         " is so large that the square of a gradient may overflow fp32";
}

cpu_adam::AdamConfig adam_config(const OptimizerConfig& optimizer, bool group_decays,
                                 const LearningRate& now) {
  return {.learning_rate = static_cast<float>(now.rate),
          .beta1 = static_cast<float>(now.betas[0]),
          .beta2 = static_cast<float>(now.betas[1]),
          .epsilon = static_cast<float>(optimizer.epsilon),
          .weight_decay = group_decays ? static_cast<float>(optimizer.weight_decay) : 0.0f,
          .decay_mode = optimizer.decay_mode,
          .bias_correction = optimizer.bias_correction};
}

}  // namespace penstock::zero
