#pragma once

#include <penstock/zero/config/config.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::zero {

/// The settings of a step that must be equal on all ranks, as numbers; lists are hashed. Ranks exchange them with their
/// norms.
struct StepSettings {
  static constexpr std::size_t count = 25;
  std::array<double, count> values{};
};

/// A hash of units, parameters, their names, counts and groups, and of what they share.
[[nodiscard]] std::uint64_t layout_hash(const ModelLayout& model);

/// What the trainer gives for one step.
struct StepGiven {
  std::uint64_t number = 0;
  std::uint32_t micro_batches = 1;
  LearningRate learning_rate;
  double loss_scale = 1;
  std::span<const std::uint32_t> units_without_gradient;
  std::span<const OptimizerGroup> groups;
  std::uint64_t layout_hash = 0;
  std::uint64_t collectives_hash = 0;
};

[[nodiscard]] StepSettings step_settings(const Config& config, const StepGiven& step);

/// Errors: invalid_config, naming the first setting of `rank` that differs from rank 0's, with both values.
[[nodiscard]] Result<void> check_same_settings(const StepSettings& of_rank_0, const StepSettings& of_rank,
                                               std::size_t rank);

}  // namespace penstock::zero
