#pragma once

#include "zero/engine/engine_context.hpp"
#include "zero/engine/offloaded_optimizer.hpp"
#include "zero/engine/step_arithmetic.hpp"

#include <penstock/zero/engine/engine.hpp>
#include <penstock/zero/layout/memory_plan.hpp>

#include <optional>

namespace penstock::zero {

/// The end of a step: the global norm of the gradients, what follows from it, the update, and the agreement of all
/// ranks on the outcome.
///
/// Used by the trainer's thread.
class OptimizerStep {
 public:
  OptimizerStep(EngineContext& context, OffloadedOptimizer& optimizer, const MemoryPlan& plan)
      : context_(context), optimizer_(optimizer), plan_(plan) {}

  void set_learning_rate(std::optional<float> learning_rate) { learning_rate_ = learning_rate; }
  /// Whether the norm of a step is known, and its update not complete.
  [[nodiscard]] bool incomplete() const { return norm_.has_value(); }

  /// Every gradient is accumulated: computes the norm. `waited` is how long that took.
  Result<void> begin(TimePoint waited);
  /// Updates every tile that does not stand at `number` yet, or skips the step. After an error incomplete() says
  /// whether it may be called again.
  Result<StepOutcome> finish(std::uint64_t number, std::uint32_t micro_batches);

 private:
  struct GlobalNorm {
    GradientNorm gradients;
    bool finite = true;
    TimePoint waited{0};
  };
  Result<GlobalNorm> compute_global_norm();
  Result<void> update(std::uint64_t number);
  Result<void> agree(const Result<void>& mine);

  EngineContext& context_;
  OffloadedOptimizer& optimizer_;
  const MemoryPlan& plan_;
  std::optional<float> learning_rate_;
  std::optional<GlobalNorm> norm_;  // of a step that is not complete
};

}  // namespace penstock::zero
