#pragma once

#include <penstock/base/result.hpp>

#include <cstdint>

namespace penstock::zero {

/// `fp16`: how a dynamic loss scale moves. The defaults are DeepSpeed's.
struct DynamicLossScale {
  std::uint32_t initial_scale_power = 16;  ///< the first scale is 2 to this power, at most 126
  std::uint32_t loss_scale_window = 1000;  ///< good steps after which the scale is doubled
  std::uint32_t hysteresis = 2;         ///< overflows until the scale is halved: this one and all that follow
  bool consecutive_hysteresis = false;  ///< each good step restores the hysteresis, not only a doubling
  std::uint32_t min_loss_scale = 1;
};

/// The factor of the loss that keeps fp16 gradients from vanishing: it grows while they are finite, and is halved when
/// they overflow. DeepSpeed 0.19.8's state machine (deepspeed/runtime/fp16/loss_scaler.py). A value type.
class LossScaler {
 public:
  struct State {
    double scale = 1;
    std::int64_t hysteresis = 0;  ///< overflows left before the scale is halved, and the one that halves it
    std::int64_t updates = 0;     ///< steps, skipped ones included
    std::int64_t last_overflow = -1;  ///< the update, counted from 0; -1: none

    friend bool operator==(const State&, const State&) = default;
  };

  /// A static scale, which never moves.
  explicit LossScaler(double scale = 1) : state_{.scale = scale} {}
  /// Settings out of their ranges act as the nearest ones in them.
  explicit LossScaler(const DynamicLossScale& dynamic);

  [[nodiscard]] double scale() const { return state_.scale; }
  /// Whether a step that overflows can succeed with a lower scale.
  [[nodiscard]] bool is_dynamic() const { return is_dynamic_; }
  [[nodiscard]] const State& state() const { return state_; }
  /// Continues from the state of another run with the same settings. From that of a static scale, whose hysteresis is
  /// 0, a dynamic one takes nothing: it goes on as it is.
  ///
  /// Errors: invalid_argument, for a scale that is not finite or not above 0, and for counts that no run has.
  Result<void> restore(const State& state);

  /// Adapts the scale after a step.
  ///
  /// Errors: non_finite, where the scale should be halved and is at its minimum already: nothing has changed then.
  Result<void> update(bool overflow);

 private:
  State state_;
  DynamicLossScale dynamic_;
  bool is_dynamic_ = false;
};

}  // namespace penstock::zero
