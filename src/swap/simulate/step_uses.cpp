#include "swap/simulate/step_uses.hpp"

#include <algorithm>

namespace penstock::swap {

namespace {

using Purpose = tiers::Purpose;

/// Whether the update's use is the first one of a flat: its gradient, or its shard if that gradient is elsewhere.
bool begins_flat(const AccessTrace& trace, const std::vector<std::uint32_t>& of_update, std::size_t use) {
  const auto purpose = [&](std::size_t i) { return trace.tensors[trace.uses[of_update[i]].tensor].purpose; };
  if (use == 0 || purpose(use) == Purpose::gradient_shard) return true;
  return purpose(use) == Purpose::parameter_shard && purpose(use - 1) != Purpose::gradient_shard;
}

void divide_update(const AccessTrace& trace, StepUses& uses) {
  uses.flat_of.resize(trace.tensors.size());
  for (std::size_t i = 0; i < uses.of_update.size(); ++i) {
    if (begins_flat(trace, uses.of_update, i)) uses.flats.push_back({.begin = i, .end = i});
    uses.flats.back().end = i + 1;
    uses.flat_of[trace.uses[uses.of_update[i]].tensor] = static_cast<std::uint32_t>(uses.flats.size() - 1);
  }
}

void find_added(const AccessTrace& trace, StepUses& uses) {
  auto& flats = uses.flats;
  // The last use counts, and that of a gradient before that of a shard.
  for (const auto purpose : {Purpose::parameter_shard, Purpose::gradient_shard}) {
    for (std::size_t i = 0; i < uses.of_trainer.size(); ++i) {
      const std::uint32_t tensor = trace.uses[uses.of_trainer[i]].tensor;
      if (uses.flat_of[tensor] && trace.tensors[tensor].purpose == purpose)
        flats[*uses.flat_of[tensor]].added_at = i + 1;
    }
  }
  for (std::uint32_t flat = 0; flat < flats.size(); ++flat)
    if (flats[flat].added_at > 0) uses.added_after.push_back(flat);
  std::stable_sort(uses.added_after.begin(), uses.added_after.end(),
                   [&](auto a, auto b) { return flats[a].added_at < flats[b].added_at; });
}

std::size_t find_last_micro_batch(const AccessTrace& trace, const std::vector<std::uint32_t>& of_trainer) {
  std::vector<bool> used_later(trace.tensors.size());
  std::size_t first = of_trainer.size();
  for (std::size_t i = of_trainer.size(); i-- > 0;) {
    const std::uint32_t tensor = trace.uses[of_trainer[i]].tensor;
    if (trace.tensors[tensor].purpose != Purpose::gradient_shard || used_later[tensor]) continue;
    used_later[tensor] = true;
    first = i;
  }
  return first;
}

/// Gradients on disk, as an engine's: the update reads them once, and then they are overwritten.
std::vector<bool> find_discarded(const AccessTrace& trace) {
  struct Uses {
    std::optional<Access> first;
    Access last{};
    std::uint32_t reads = 0;
  };
  std::vector<Uses> uses(trace.tensors.size());
  for (const auto& [tensor, access] : trace.uses) {
    Uses& of_tensor = uses[tensor];
    if (!of_tensor.first) of_tensor.first = access;
    of_tensor.last = access;
    if (access == Access::read) ++of_tensor.reads;
  }
  std::vector<bool> is_discarded(uses.size());
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const auto& tensor = trace.tensors[i];
    is_discarded[i] = tensor.on_disk && tensor.purpose == Purpose::gradient_shard &&
                      uses[i].first == Access::overwrite && uses[i].last == Access::read &&
                      uses[i].reads == 1;
  }
  return is_discarded;
}

}  // namespace

bool is_update(const AccessTrace& trace, const AccessTrace::Use& use) {
  switch (trace.tensors[use.tensor].purpose) {
    case Purpose::optimizer_tile: return true;
    case Purpose::gradient_shard: return use.access == Access::read;
    case Purpose::parameter_shard: return use.access != Access::read;
    default: return false;
  }
}

StepUses StepUses::divide(const AccessTrace& trace, bool update_beside, bool update_in_backward) {
  StepUses uses;
  for (std::uint32_t i = 0; i < trace.uses.size(); ++i)
    (update_beside && is_update(trace, trace.uses[i]) ? uses.of_update : uses.of_trainer).push_back(i);
  divide_update(trace, uses);
  if (update_in_backward) find_added(trace, uses);
  uses.is_discarded = find_discarded(trace);
  uses.last_micro_batch = find_last_micro_batch(trace, uses.of_trainer);
  return uses;
}

}  // namespace penstock::swap
