#include <penstock/zero/config/loss_scaler.hpp>

#include "base/number_text.hpp"

#include <algorithm>
#include <cmath>

namespace penstock::zero {

LossScaler::LossScaler(const DynamicLossScale& dynamic)
    : state_{.scale = std::ldexp(1.0, static_cast<int>(std::min(dynamic.initial_scale_power, 126u))),
             .hysteresis = dynamic.hysteresis},
      dynamic_(dynamic),
      is_dynamic_(true) {
  dynamic_.loss_scale_window = std::max(dynamic_.loss_scale_window, 1u);
}

Result<void> LossScaler::restore(const State& state) {
  const auto refuse = [](const char* member, const std::string& wanted, double got) -> Result<void> {
    return Error::invalid_argument("LossScaler::restore").object(member).wanted(wanted).got(number_text(got));
  };
  if (!std::isfinite(state.scale) || state.scale <= 0)
    return refuse("scale", "a finite number above 0", state.scale);
  if (!is_dynamic_ && state.scale != state_.scale) {
    return refuse("scale", number_text(state_.scale) + ", the static one of the configuration", state.scale);
  }
  if (state.updates < 0) return refuse("updates", "0 or more", static_cast<double>(state.updates));
  if (state.last_overflow < -1 || state.last_overflow >= std::max<std::int64_t>(state.updates, 0)) {
    return refuse("last_overflow", "-1, or an update below " + std::to_string(state.updates),
                  static_cast<double>(state.last_overflow));
  }
  const bool is_of_static = is_dynamic_ && dynamic_.hysteresis > 0 && state.hysteresis < 1;
  if (!is_of_static) state_ = state;
  return ok();
}

Result<void> LossScaler::update(bool overflow) {
  if (!is_dynamic_) return ok();
  const double least = dynamic_.min_loss_scale;
  if (overflow) {
    const bool halves = dynamic_.hysteresis == 1 || state_.hysteresis == 1;
    if (halves && (state_.scale == least || state_.scale / 2 == 0)) {
      return Error(ErrorCode::non_finite, "LossScaler::update")
          .reason("gradients overflow although the loss scale is at its minimum")
          .object("fp16.min_loss_scale")
          .got(number_text(state_.scale))
          .advice("look for a loss that is not finite; use bf16, or a lower learning rate");
    }
    if (halves)
      state_.scale = std::max(state_.scale / 2, least);
    else
      --state_.hysteresis;
    state_.last_overflow = state_.updates;
  } else {
    if (dynamic_.consecutive_hysteresis) state_.hysteresis = dynamic_.hysteresis;
    const std::int64_t good_steps = state_.updates - state_.last_overflow - 1;
    if (good_steps > 0 && good_steps % dynamic_.loss_scale_window == 0) {
      if (!dynamic_.consecutive_hysteresis) state_.hysteresis = dynamic_.hysteresis;
      state_.scale *= 2;
    }
  }
  ++state_.updates;
  return ok();
}

}  // namespace penstock::zero
