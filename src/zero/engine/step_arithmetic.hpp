#pragma once

#include <penstock/cpu_adam/optimizers.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/engine/update_segment.hpp>
#include <penstock/zero/layout/optimizer_group.hpp>

#include <cstdint>
#include <string>

namespace penstock::zero {

// The scalars of a step, computed from the configuration. Pure functions.

/// The global norm of the unscaled gradients, and the factor that clips them to the configured norm.
struct GradientNorm {
  double norm = 0;
  double clip_factor = 1;
};

/// What reduced gradients, which are the mean over `ranks` of those of a loss times `loss_scale`, are divided by.
[[nodiscard]] double gradient_divisor(const Config& config, double loss_scale, std::uint32_t ranks);

/// `squares` is the sum of the squares of all reduced gradients. A norm that is not finite clips nothing.
[[nodiscard]] GradientNorm gradient_norm(const Config& config, double divisor, double squares);

/// The factor by which Adam multiplies each gradient first: clip factor / divisor.
[[nodiscard]] float gradient_factor(double divisor, double clip_factor);

/// Why the step is skipped unless the configuration says otherwise; empty if there is no reason. A gradient whose
/// square is not finite in fp32 would make the second moment infinite: none has one if the square of the norm, after
/// clipping, is finite in fp32.
[[nodiscard]] std::string reason_to_skip(double divisor, const GradientNorm& gradients);

/// The hyperparameters of an optimizer group in a step with the rate and the betas `now`.
[[nodiscard]] GroupHyperparameters group_hyperparameters(const OptimizerConfig& optimizer,
                                                         const OptimizerGroup& group,
                                                         const LearningRate& now);
/// The same for the formula of the optimizer; with Muon, AdamW's. Precondition: it has one.
[[nodiscard]] cpu_adam::Hyperparameters hyperparameters(const OptimizerConfig& optimizer,
                                                        const GroupHyperparameters& group);

}  // namespace penstock::zero
