#include "zero/idle_memory.hpp"

#include <algorithm>

namespace penstock::zero {

std::string note_of_idle_memory(const Config& config, const MemoryPlan& plan,
                                const tiers::MemoryLimit& machine) {
  constexpr ByteCount few = 1_GiB;
  const PenstockConfig& penstock = config.penstock;
  const ByteCount moving = plan.disk_tiles - plan.home_tiles;
  if (!penstock.host_budget.is_zero() || !penstock.node_budgets.empty() || moving < few) return {};
  const std::uint32_t ranks = plan.local_ranks;
  const ByteCount idle = machine.available / 4 * 3 / ranks, kept = std::min(idle, moving);
  if (kept < moving / 10) return {};
  return to_string(machine.available) + " of host memory are available (" + machine.file +
         "), and penstock.host_budget is not set: with " +
         to_exact_string((plan.host_budget + kept) * ranks) + ", " + to_string(kept) + " of the " +
         to_string(moving) + " of optimizer tiles that this rank moves in each step stay in memory";
}

}  // namespace penstock::zero
