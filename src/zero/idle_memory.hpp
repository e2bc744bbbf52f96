#pragma once

#include <penstock/tiers/memory/memory_limits.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/launch/rank_identity.hpp>
#include <penstock/zero/layout/memory_plan.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <string>

namespace penstock::zero {

/// Which host budget would keep parameters and optimizer tiles on nvme in memory that is idle, for the notes of a rank.
/// Empty where a budget is given, where less than 1 GiB of them moves, or where less than a tenth of that would stay.
///
/// `machine`: once this rank has its memory. The other ranks' and penstock.memory_reserve are taken from what is
/// available, and a quarter of the rest is left to others.
[[nodiscard]] std::string note_of_idle_memory(const Config& config, const ModelLayout& model,
                                              const MemoryPlan& plan, const RankIdentity& identity,
                                              tiers::DeviceMemory device_memory,
                                              const tiers::MemoryLimit& machine);

}  // namespace penstock::zero
