#include "zero/idle_memory.hpp"

#include <algorithm>

namespace penstock::zero {

std::string note_of_idle_memory(const Config& config, const ModelLayout& model, const MemoryPlan& plan,
                                const RankIdentity& identity, tiers::DeviceMemory device_memory,
                                const tiers::MemoryLimit& machine) {
  constexpr ByteCount few = 1_GiB;
  const PenstockConfig& penstock = config.penstock;
  const ByteCount moving = plan.disk_shards + plan.disk_tiles - plan.homes();
  if (!penstock.host_budget.is_zero() || !penstock.node_budgets.empty() || moving < few) return {};
  const std::uint32_t ranks = plan.local_ranks;
  const ByteCount taken = penstock.memory_reserve + plan.host_allocated() * (ranks - 1),
                  idle = (machine.available - std::min(machine.available, taken)) / 4 * 3 / ranks;
  Config roomy = config;
  roomy.penstock.host_budget = (plan.host_budget + std::min(idle, moving)) * ranks;
  const auto with_it = plan_memory(roomy, model, identity.ranks, ranks, device_memory);
  if (!with_it || with_it->homes() < plan.homes() + moving / 10) return {};
  return to_string(machine.available) + " of host memory are available (" + machine.file +
         "), and penstock.host_budget is not set: with " + to_exact_string(roomy.penstock.host_budget) +
         ", " + to_string(with_it->homes() - plan.homes()) + " of the " + to_string(moving) +
         " of parameters and optimizer states that this rank moves stay in memory";
}

}  // namespace penstock::zero
