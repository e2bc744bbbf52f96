#pragma once

#include <penstock/tiers/memory/memory_limits.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/layout/memory_plan.hpp>

#include <string>

namespace penstock::zero {

/// Which host budget would keep optimizer tiles in memory that is idle, for the notes of a rank. Empty where one is
/// given, where few tiles are on nvme, or where little memory is available. A quarter of what is available is left to
/// others. `machine`: once the plan's memory is allocated.
[[nodiscard]] std::string note_of_idle_memory(const Config& config, const MemoryPlan& plan,
                                              const tiers::MemoryLimit& machine);

}  // namespace penstock::zero
