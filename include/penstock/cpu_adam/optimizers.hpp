#pragma once

#include <penstock/base/result.hpp>
#include <penstock/cpu_adam/adam.hpp>
#include <penstock/cpu_adam/optimizer_tile.hpp>

#include <cstdint>
#include <span>
#include <variant>

namespace penstock::cpu_adam {

/// Hyperparameters of Lion (Chen et al. 2023, algorithm 2). With g the gradient times gradient_factor:
///   c = beta1 m + (1 - beta1) g,  p = p - learning_rate (sign(c) + weight_decay p),  m = beta2 m + (1 - beta2) g
/// where sign(0) = 0. (In DeepSpeed sign(0) is 1 or -1.)
struct LionConfig {
  float learning_rate = 1e-4f;
  float beta1 = 0.9f;
  float beta2 = 0.99f;
  float weight_decay = 0.0f;
};

/// Hyperparameters of Adagrad (Duchi et al. 2011), as torch.optim.Adagrad without lr_decay. With g the gradient times
/// gradient_factor:
///   g = g + weight_decay p,  v = v + g g,  p = p - learning_rate g / (sqrt(v) + epsilon)
/// (In DeepSpeed the numerator is g without the decay.)
struct AdagradConfig {
  float learning_rate = 1e-2f;
  float epsilon = 1e-10f;  ///< a value below 2^-64 is replaced by 2^-64, as in AdamConfig
  float weight_decay = 0.0f;
};

/// Hyperparameters of one optimizer group at one step; the alternatives are in the order of Optimizer.
using Hyperparameters = std::variant<AdamConfig, LionConfig, AdagradConfig>;
[[nodiscard]] constexpr Optimizer optimizer_of(const Hyperparameters& hyperparameters) {
  return static_cast<Optimizer>(hyperparameters.index());
}

/// As AdamSegment, of any optimizer.
struct OptimizerSegment {
  ElementCount end;
  Hyperparameters config;
};

/// Updates a tile by one step of its optimizer: adam_step() for any optimizer, with the same promises.
///
///     OptimizerTile tile{.state = state, .gradient = gradient, .parameter = parameter, .elements = count,
///                        .optimizer = Optimizer::lion};
///     UpdateOutcome outcome = optimizer_step(LionConfig{.learning_rate = 1e-4f}, /*step=*/1, /*gradient_factor=*/1,
///                                            tile).value();
///
/// Lion and Adagrad give the same result in every step, but count steps too.
/// Errors: as adam_step(); invalid_argument, for hyperparameters of another optimizer than the tile's; unsupported, for
/// a format that the optimizer does not take.
[[nodiscard]] Result<UpdateOutcome> optimizer_step(const Hyperparameters& config, std::uint64_t step,
                                                   float gradient_factor, const OptimizerTile& tile,
                                                   const UpdateExecution& execution = {});

/// The same for a tile whose elements differ in hyperparameters; all segments are of the tile's optimizer.
///
/// Errors: those above and of adam_step_in_segments().
[[nodiscard]] Result<UpdateOutcome> optimizer_step_in_segments(std::span<const OptimizerSegment> segments,
                                                               std::uint64_t step, float gradient_factor,
                                                               const OptimizerTile& tile,
                                                               const UpdateExecution& execution = {});

}  // namespace penstock::cpu_adam
