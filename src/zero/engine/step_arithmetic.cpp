#include "zero/engine/step_arithmetic.hpp"

#include "base/number_text.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace penstock::zero {

double gradient_divisor(const Config& config, double loss_scale, std::uint32_t ranks) {
  return config.gradient_allreduce_op == AllreduceOp::sum ? loss_scale / ranks : loss_scale;
}

GradientNorm gradient_norm(const Config& config, double divisor, double squares) {
  GradientNorm gradients{.norm = std::sqrt(squares) / divisor};
  // DeepSpeed's combined scale: max(1, (norm + 1e-6) / clip).
  const double clip = config.gradient_clipping;
  if (clip > 0 && std::isfinite(gradients.norm))
    gradients.clip_factor = 1.0 / std::max(1.0, (gradients.norm + 1e-6) / clip);
  return gradients;
}

float gradient_factor(double divisor, double clip_factor) {
  return static_cast<float>(clip_factor / divisor);
}

std::string reason_to_skip(double divisor, const GradientNorm& gradients) {
  if (!std::isfinite(gradients.norm)) return "the gradient norm is not finite";
  const double update_norm = gradients.norm * divisor * gradient_factor(divisor, gradients.clip_factor);
  if (update_norm * update_norm <= std::numeric_limits<float>::max()) return {};
  return "the gradient norm " + number_text(gradients.norm) +
         " is so large that the square of a gradient may overflow fp32";
}

GroupHyperparameters group_hyperparameters(const OptimizerConfig& optimizer, const OptimizerGroup& group,
                                           const LearningRate& now) {
  const bool is_muon = optimizer.type == cpu_adam::Optimizer::muon;
  const auto betas = group.betas.value_or(group.use_muon ? std::array{optimizer.momentum, 0.0} : now.betas);
  double rate = now.rate;
  const auto& own = group.use_muon ? optimizer.muon_learning_rate : optimizer.adam_learning_rate;
  if (is_muon && own) rate = *own * (now.rate / optimizer.learning_rate);
  return {.learning_rate = static_cast<float>(rate * group.learning_rate_factor),
          .beta1 = static_cast<float>(betas[0]),
          .beta2 = static_cast<float>(betas[1]),
          .epsilon = static_cast<float>(group.epsilon.value_or(optimizer.epsilon)),
          .weight_decay = static_cast<float>(group.weight_decay.value_or(optimizer.weight_decay))};
}

cpu_adam::Hyperparameters hyperparameters(const OptimizerConfig& optimizer,
                                          const GroupHyperparameters& group) {
  if (optimizer.type == cpu_adam::Optimizer::lion) {
    return cpu_adam::LionConfig{.learning_rate = group.learning_rate,
                                .beta1 = group.beta1,
                                .beta2 = group.beta2,
                                .weight_decay = group.weight_decay};
  }
  if (optimizer.type == cpu_adam::Optimizer::adagrad) {
    return cpu_adam::AdagradConfig{
        .learning_rate = group.learning_rate, .epsilon = group.epsilon, .weight_decay = group.weight_decay};
  }
  return cpu_adam::AdamConfig{.learning_rate = group.learning_rate,
                              .beta1 = group.beta1,
                              .beta2 = group.beta2,
                              .epsilon = group.epsilon,
                              .weight_decay = group.weight_decay,
                              .decay_mode = optimizer.decay_mode,
                              .bias_correction = optimizer.bias_correction};
}

}  // namespace penstock::zero
