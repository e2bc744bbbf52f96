#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

namespace penstock::zero {

/// How the learning rate grows during a warm-up of n steps, after i of them: by log(i + 1) / log(n), or by i / n.
enum class WarmupType : std::uint8_t { log, linear };

[[nodiscard]] std::string_view to_string(WarmupType type);

// The schedulers of DeepSpeed 0.19.8, with the names and defaults of their parameters:
// deepspeed/runtime/lr_schedules.py.

/// Grows from `warmup_min_lr` to `warmup_max_lr`, then stays there. Steps 1 and 2 both have the minimum, as in
/// DeepSpeed.
struct WarmupLR {
  double warmup_min_lr = 0;
  std::optional<double> warmup_max_lr;    ///< none: the optimizer's learning rate
  std::uint64_t warmup_num_steps = 1000;  ///< at least 1; 1 acts as 2
  WarmupType warmup_type = WarmupType::log;
};

/// The same, then linearly down to 0 at `total_num_steps`.
struct WarmupDecayLR {
  std::uint64_t total_num_steps = 0;  ///< must be given: at least 1
  double warmup_min_lr = 0;
  double warmup_max_lr = 0.001;
  std::uint64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::log;
};

/// Ratios of the optimizer's learning rate: grows from `warmup_min_ratio` to 1, then half a cosine down to
/// `cos_min_ratio` at `total_num_steps`, where it stays. Step 1 has the learning rate 0, as in DeepSpeed.
struct WarmupCosineLR {
  std::uint64_t total_num_steps = 0;  ///< must be given: at least 1
  double warmup_min_ratio = 0;
  std::uint64_t warmup_num_steps = 1000;
  double cos_min_ratio = 0.0001;
  WarmupType warmup_type = WarmupType::log;
};

/// One cycle of the learning rate, from the minimum to the maximum and back, while the momentum (beta1) goes the other
/// way; then a decay. Step 1 has the minimum of both, and beta2 is 0.99 where the momentum is cycled, as in DeepSpeed.
struct OneCycle {
  double cycle_min_lr = 0, cycle_max_lr = 0;  ///< must be given
  double decay_lr_rate = 0;
  double cycle_first_step_size = 2000;                    ///< steps of the first half, above 0
  std::optional<double> cycle_second_step_size;           ///< none: as the first
  std::uint64_t cycle_first_stair_count = 0;              ///< 0: no stairs
  std::optional<std::uint64_t> cycle_second_stair_count;  ///< none: as the first
  double decay_step_size = 0;                             ///< steps of a decay; 0: no decay
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8, cycle_max_mom = 0.9;
  double decay_mom_rate = 0;
};

/// Grows without end, by `lr_range_test_step_rate` times the minimum in each `lr_range_test_step_size` steps.
struct LRRangeTest {
  double lr_range_test_min_lr = 0.001;
  std::uint64_t lr_range_test_step_size = 2000;  ///< at least 1
  double lr_range_test_step_rate = 1;
  bool lr_range_test_staircase = false;
};

/// `scheduler`; std::monostate: none, the learning rate is constant.
using SchedulerConfig =
    std::variant<std::monostate, WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest>;

/// What a scheduler moves from step to step.
struct LearningRate {
  double rate = 0;
  std::array<double, 2> betas{};
};

}  // namespace penstock::zero
