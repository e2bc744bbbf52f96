#pragma once

#include "zero/engine/engine_context.hpp"
#include "zero/engine/step_arithmetic.hpp"
#include "zero/engine/step_settings.hpp"
#include "zero/engine/update_sweep.hpp"
#include "zero/engine/wear_limit.hpp"

#include <penstock/zero/engine/engine.hpp>
#include <penstock/zero/layout/memory_plan.hpp>

#include <optional>
#include <span>
#include <string>

namespace penstock::zero {

/// The end of a step: computes the global norm of the gradients, clips or skips, and starts the update. With
/// penstock.update_in_backward the update begins before it, as nothing of it depends on the norm.
///
/// Used by the trainer's thread.
class OptimizerStep {
 public:
  OptimizerStep(EngineContext& context, UpdateSweep& update, const MemoryPlan& plan)
      : context_(context),
        update_(update),
        plan_(plan),
        layout_hash_(layout_hash(context.model)),
        groups_(context.model.groups),
        loss_scaler_(context.config.loss_scaler()) {}

  /// The trainer's rate of this step; none: that of the configuration.
  void set_learning_rate(std::optional<double> learning_rate) { given_rate_ = learning_rate; }
  [[nodiscard]] const std::vector<OptimizerGroup>& groups() const { return groups_; }
  /// Precondition: they are valid, and as many as before.
  void set_groups(std::vector<OptimizerGroup> groups) { groups_ = std::move(groups); }
  /// What the step will have. Errors: invalid_config, where the scheduler gives what no optimizer takes.
  [[nodiscard]] Result<LearningRate> learning_rate() const;
  [[nodiscard]] const LossScaler& loss_scaler() const { return loss_scaler_; }
  [[nodiscard]] LossScaler& loss_scaler() { return loss_scaler_; }
  /// Begins at the first loss scale again.
  void reset_loss_scale() { loss_scaler_ = context_.config.loss_scaler(); }

  /// Begins the update within the backward, of `flats`, whose last gradient is being reduced; or adds them to it. A
  /// flat with whose gradient finish() would skip the step fails the engine before it is updated: non_finite. Does
  /// nothing without a learning_rate(), whose error finish() returns.
  void update_in_backward(std::span<const std::uint32_t> flats);
  /// Computes the norm, compares the settings of all ranks, and starts the update or skips it. Every gradient must be
  /// accumulated, and the last update complete. Errors fail the engine, except those of Runtime::discard().
  /// `refuses`: what WearLimit refuses on this rank. An update that a rank refuses is not started, and the outcome is a
  /// skipped step without a reason.
  Result<StepOutcome> finish(std::uint32_t micro_batches,
                             std::span<const std::uint32_t> units_without_gradient,
                             WearLimit::Refuses refuses);
  /// Of all ranks, the one that refuses most, as of the last finish().
  struct Wear {
    WearLimit::Refuses refuses = WearLimit::Refuses::nothing;
    std::size_t rank = 0;
  };
  [[nodiscard]] const Wear& wear() const { return wear_; }

 private:
  [[nodiscard]] double divisor() const;
  Result<std::vector<double>> exchange_squares(const StepSettings& settings, WearLimit::Refuses refuses);
  void begin_update(double clip_factor, const LearningRate& now);
  [[nodiscard]] Result<void> check_gradient(const char* operation, double divisor,
                                            const FlatState& flat) const;
  [[nodiscard]] Error unusable_gradients(const std::string& reason,
                                         const std::vector<double>& squares_of_ranks) const;

  EngineContext& context_;
  UpdateSweep& update_;
  const MemoryPlan& plan_;
  const std::uint64_t layout_hash_;
  std::vector<OptimizerGroup> groups_;
  std::optional<double> given_rate_;
  Wear wear_;
  LossScaler loss_scaler_;
};

}  // namespace penstock::zero
