#include "zero/config/scheduled.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <numbers>
#include <optional>

namespace penstock::zero::config {

namespace {

/// The part of a warm-up that is over after `done` steps; nothing once it has ended.
std::optional<double> warmup_part(std::uint64_t done, std::uint64_t num_steps, WarmupType type) {
  const std::uint64_t steps = std::max<std::uint64_t>(num_steps, 2);
  if (done >= steps) return std::nullopt;
  const auto n = static_cast<double>(steps), i = static_cast<double>(done);
  return type == WarmupType::log ? 1.0 / std::log(n) * std::log(i + 1) : i / n;
}

double minus(std::uint64_t a, std::uint64_t b) {
  return static_cast<double>(a) - static_cast<double>(b);
}

// Each scheduler's rate after `done` steps since step 1.

LearningRate after(const WarmupLR& scheduler, const LearningRate& optimizer, std::uint64_t done) {
  const double least = scheduler.warmup_min_lr, most = scheduler.warmup_max_lr.value_or(optimizer.rate);
  const double part = warmup_part(done, scheduler.warmup_num_steps, scheduler.warmup_type).value_or(1);
  return {least + (most - least) * part, optimizer.betas};
}

LearningRate after(const WarmupDecayLR& scheduler, const LearningRate& optimizer, std::uint64_t done) {
  const std::uint64_t warmup = std::max<std::uint64_t>(scheduler.warmup_num_steps, 2);
  const auto warming = warmup_part(done, warmup, scheduler.warmup_type);
  const double part = warming.value_or(std::max(
      0.0, minus(scheduler.total_num_steps, done) / std::max(1.0, minus(scheduler.total_num_steps, warmup))));
  const double least = scheduler.warmup_min_lr;
  return {least + (scheduler.warmup_max_lr - least) * part, optimizer.betas};
}

LearningRate after(const WarmupCosineLR& scheduler, const LearningRate& optimizer, std::uint64_t done) {
  const std::uint64_t warmup = std::max<std::uint64_t>(scheduler.warmup_num_steps, 2);
  double ratio = 0;
  if (const auto warming = warmup_part(done, warmup, scheduler.warmup_type)) {
    ratio = scheduler.warmup_min_ratio + *warming * (1.0 - scheduler.warmup_min_ratio);
  } else {
    const double decay_steps = std::max(1.0, minus(scheduler.total_num_steps, warmup));
    const double progress = std::min(minus(done, warmup) + 1, decay_steps) / decay_steps;
    ratio = (1 + std::cos(std::numbers::pi * progress)) / 2;
    ratio = std::max(0.0, scheduler.cos_min_ratio + (1.0 - scheduler.cos_min_ratio) * ratio);
  }
  return {optimizer.rate * ratio, optimizer.betas};
}

/// The height in the cycle, from 0 to 1. Stairs are counted from the offset in the cycle, which is an integer: the
/// height as a fraction can be just below a stair.
double cycle_height(const OneCycle& cycle, double first, double second, double steps) {
  const double total = first + second;
  const double x = 1.0 + steps / total - std::floor(1 + steps / total);
  const double first_part = first / total;
  const bool rises = x <= first_part;
  const std::uint64_t stairs = rises ? cycle.cycle_first_stair_count
                                     : cycle.cycle_second_stair_count.value_or(cycle.cycle_first_stair_count);
  if (stairs == 0) return rises ? x / first_part : (x - 1) / (first_part - 1);
  const double count = static_cast<double>(stairs), offset = std::fmod(steps, total);
  const double stair = offset <= first ? offset * count / first : (total - offset) * count / second;
  return std::floor(stair) / count;
}

LearningRate after(const OneCycle& cycle, const LearningRate& optimizer, std::uint64_t done) {
  const double first = cycle.cycle_first_step_size;
  const double second = cycle.cycle_second_step_size.value_or(first), total = first + second;
  const double steps = static_cast<double>(done) + 1;
  LearningRate now{cycle.cycle_min_lr, optimizer.betas};
  double momentum = cycle.cycle_max_mom;
  if (static_cast<double>(done) < total) {
    const double height = cycle_height(cycle, first, second, steps);
    now.rate = cycle.cycle_min_lr + (cycle.cycle_max_lr - cycle.cycle_min_lr) * height;
    momentum = cycle.cycle_max_mom - (cycle.cycle_max_mom - cycle.cycle_min_mom) * height;
  } else if (cycle.decay_step_size > 0) {
    const double interval = (static_cast<double>(done) - total + 1) / cycle.decay_step_size;
    now.rate = cycle.cycle_min_lr / (1 + cycle.decay_lr_rate * interval);
    momentum = cycle.cycle_max_mom * (1 + cycle.decay_mom_rate * interval);
  }
  if (cycle.cycle_momentum) now.betas = {momentum, 0.99};
  return now;
}

LearningRate after(const LRRangeTest& test, const LearningRate& optimizer, std::uint64_t done) {
  double interval = (static_cast<double>(done) + 1) / static_cast<double>(test.lr_range_test_step_size);
  if (test.lr_range_test_staircase) interval = std::floor(interval);
  return {test.lr_range_test_min_lr * (1 + test.lr_range_test_step_rate * interval), optimizer.betas};
}

// What the constructors of DeepSpeed's schedulers set, for step 1.

LearningRate at_start(const WarmupLR& scheduler, const LearningRate& optimizer) {
  return {scheduler.warmup_min_lr, optimizer.betas};
}
LearningRate at_start(const WarmupDecayLR& scheduler, const LearningRate& optimizer) {
  return {scheduler.warmup_min_lr, optimizer.betas};
}
LearningRate at_start(const WarmupCosineLR&, const LearningRate& optimizer) {
  return {0, optimizer.betas};
}
LearningRate at_start(const OneCycle& cycle, const LearningRate& optimizer) {
  if (!cycle.cycle_momentum) return {cycle.cycle_min_lr, optimizer.betas};
  return {cycle.cycle_min_lr, {cycle.cycle_min_mom, 0.99}};
}
LearningRate at_start(const LRRangeTest& test, const LearningRate& optimizer) {
  return {test.lr_range_test_min_lr, optimizer.betas};
}

}  // namespace

std::string_view type_name(const SchedulerConfig& scheduler) {
  constexpr std::string_view names[] = {"",         "WarmupLR",   "WarmupDecayLR", "WarmupCosineLR",
                                        "OneCycle", "LRRangeTest"};
  return names[scheduler.index()];
}

LearningRate scheduled(const SchedulerConfig& scheduler, const LearningRate& optimizer, std::uint64_t step) {
  const auto of = [&](const auto& one) {
    if constexpr (std::same_as<std::decay_t<decltype(one)>, std::monostate>)
      return optimizer;
    else
      return step <= 1 ? at_start(one, optimizer) : after(one, optimizer, step - 2);
  };
  return std::visit(of, scheduler);
}

}  // namespace penstock::zero::config
