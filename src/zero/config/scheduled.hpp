#pragma once

#include <penstock/zero/config/learning_rate_schedule.hpp>

#include <cstdint>
#include <string_view>

namespace penstock::zero::config {

/// The name that ds_config.json uses; empty without a scheduler.
[[nodiscard]] std::string_view type_name(const SchedulerConfig& scheduler);

/// What is in force for step `step`, counted from 1, in DeepSpeed's order of operations. `optimizer` is what the
/// optimizer's own parameters say.
[[nodiscard]] LearningRate scheduled(const SchedulerConfig& scheduler, const LearningRate& optimizer,
                                     std::uint64_t step);

}  // namespace penstock::zero::config
