#pragma once

#include <penstock/cpu_adam/adam.hpp>
#include <penstock/zero/config/config.hpp>

#include <optional>

namespace penstock::zero {

// What a step takes from the configuration. Pure.

/// The global norm of the gradients, unscaled, and what clips them to the configured norm.
struct GradientNorm {
  double norm = 0;
  double clip_factor = 1;
};

/// `squares`: the sum of the squares of all gradients, which carry the loss scale.
[[nodiscard]] GradientNorm gradient_norm(const Config& config, double squares);

/// What each gradient is multiplied by before all else.
[[nodiscard]] float gradient_factor(const Config& config, double clip_factor);

/// The hyperparameters of an optimizer group; `learning_rate` of this step, where the trainer gave one.
[[nodiscard]] cpu_adam::AdamConfig adam_config(const OptimizerConfig& optimizer, bool group_decays,
                                               std::optional<float> learning_rate);

}  // namespace penstock::zero
