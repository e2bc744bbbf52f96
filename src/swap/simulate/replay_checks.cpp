#include "swap/simulate/replay_checks.hpp"

#include <cmath>
#include <string>
#include <utility>

namespace penstock::swap {

Result<void> check_costs(const ReplayCosts& costs) {
  const auto refused = [](const std::string& rate, const char* wanted, double got) {
    return Error::invalid_argument("Replay::create").object(rate).wanted(wanted).got(std::to_string(got));
  };
  if (costs.disks.empty())
    return Error::invalid_argument("Replay::create").object("disks").wanted("1 or more").got(0u);
  for (std::size_t i = 0; i < costs.disks.size(); ++i) {
    const auto& [rates, weight, endurance, eviction] = costs.disks[i];
    const std::string disk = "disks[" + std::to_string(i) + "].";
    for (const auto& [name, rate] :
         {std::pair("read", rates.read), {"write", rates.write}, {"mixed", rates.mixed}})
      if (!(rate > 0) || !std::isfinite(rate))
        return refused(disk + name, "bytes a second, more than 0", rate);
    if (!(weight > 0) || !std::isfinite(weight)) return refused(disk + "weight", "more than 0", weight);
    for (const double cost : {eviction.read, eviction.write})
      if (!(cost > 0) || !std::isfinite(cost)) return refused(disk + "eviction", "more than 0", cost);
  }
  for (std::size_t i = 0; i < costs.use.size(); ++i) {
    const double rate = costs.use[i];
    if (!(rate >= 0) || !std::isfinite(rate)) {
      return refused("use of " + std::string(to_string(static_cast<tiers::Purpose>(i))),
                     "bytes a second, 0 or more", rate);
    }
  }
  return ok();
}

BudgetNeed::BudgetNeed(const AccessTrace& trace, const StepUses& uses, Alignment alignment) {
  for (const auto& tensor : trace.tensors)
    if (!tensor.on_disk && !tensor.transient) staying += round_up(tensor.size, alignment);
  const auto moving_size = [&](std::uint32_t number) {
    const auto& tensor = trace.tensors[number];
    return tensor.on_disk || tensor.transient ? round_up(tensor.size, alignment) : ByteCount();
  };
  const auto consider = [&](std::uint32_t tensor, ByteCount held) {
    if (held + moving_size(tensor) <= together) return;
    together = held + moving_size(tensor);
    last = &trace.tensors[tensor];
  };
  for (std::uint32_t i = 0; i < trace.tensors.size(); ++i) consider(i, {});
  largest = together;
  for (const auto& [begin, end, added_at] : uses.flats) {
    ByteCount held;
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint32_t tensor = trace.uses[uses.of_update[i]].tensor;
      consider(tensor, held);
      if (trace.tensors[tensor].purpose != tiers::Purpose::optimizer_tile) held += moving_size(tensor);
    }
  }
}

ByteCount BudgetNeed::enough() const {
  // Gradient, shard and a tile of the update, or what the trainer holds, divide the memory into four gaps at most.
  constexpr std::uint64_t gaps = 4;
  return staying + together + largest * (1 + gaps);
}

Result<void> check_budget(const BudgetNeed& need, ByteCount budget) {
  if (need.least() <= budget) return ok();
  std::string reason =
      "the host budget is too small for the trace: " + to_string(need.staying) + " stay in memory";
  if (need.last != nullptr && need.together > need.largest) {
    reason += ", and the update holds " + to_string(need.together) + " with " + need.last->name;
  } else if (need.last != nullptr) {
    reason += ", and the largest other tensor, " + need.last->name + ", has " + to_string(need.largest);
  }
  return Error(ErrorCode::budget_too_small, "Replay::create")
      .reason(reason)
      .wanted("at least " + to_exact_string(need.least()))
      .got(to_exact_string(budget))
      .note("gaps    where other tensors divide the memory, more is needed: " +
            to_exact_string(need.enough()) + " has room in every order")
      .advice("raise the budget, or use smaller units or tiles");
}

}  // namespace penstock::swap
