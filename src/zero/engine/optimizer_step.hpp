#pragma once

#include "zero/engine/engine_context.hpp"
#include "zero/engine/offloaded_optimizer.hpp"
#include "zero/engine/step_arithmetic.hpp"
#include "zero/engine/step_settings.hpp"

#include <penstock/zero/engine/engine.hpp>
#include <penstock/zero/layout/memory_plan.hpp>

#include <optional>
#include <span>
#include <string>

namespace penstock::zero {

/// The end of a step: computes the global norm of the gradients, clips or skips, updates, and exchanges the outcome
/// with all ranks.
///
/// Used by the trainer's thread.
class OptimizerStep {
 public:
  OptimizerStep(EngineContext& context, OffloadedOptimizer& optimizer, const MemoryPlan& plan)
      : context_(context), optimizer_(optimizer), plan_(plan), layout_hash_(layout_hash(context.model)) {}

  void set_learning_rate(std::optional<float> learning_rate) { learning_rate_ = learning_rate; }
  /// Whether the norm of a step is known and its update is not complete.
  [[nodiscard]] bool incomplete() const { return norm_.has_value(); }

  /// Computes the norm and compares the settings of all ranks; every gradient must be accumulated. `waited` is the time
  /// that the caller waited for that.
  Result<void> begin(std::uint32_t micro_batches, std::span<const std::uint32_t> units_without_gradient,
                     TimePoint waited);
  /// Updates every tile that the step in progress has not updated yet, or skips the step. After an error incomplete()
  /// tells whether it may be called again.
  Result<StepOutcome> finish();

 private:
  struct GlobalNorm {
    GradientNorm gradients;
    std::string skip_reason;  // empty: the step updates
    TimePoint waited{0};
  };
  Result<GlobalNorm> compute_global_norm(const StepSettings& settings);
  Result<void> update();
  Result<void> exchange_outcomes(const Result<void>& mine);

  EngineContext& context_;
  OffloadedOptimizer& optimizer_;
  const MemoryPlan& plan_;
  const std::uint64_t layout_hash_;
  std::optional<float> learning_rate_;
  std::optional<GlobalNorm> norm_;  // of a step that is not complete
};

}  // namespace penstock::zero
