#include "swap/policy/eviction_policy.hpp"

#include "tiers/store/tensor_slot.hpp"

#include <utility>

namespace penstock::swap {

using tiers::slot_of;
using tiers::TensorId;

namespace {

bool is_clean_and_elsewhere(const EvictionCandidate& candidate) {
  return !candidate.dirty && !candidate.home_in_memory;
}

/// Two cost little more than one: what is dirty is often written in the end, if it stays, too. Of the factors that
/// were tried, it moves fewest bytes of those that never move more than lru in random orders of use; docs/policies.md.
constexpr std::array<double, 3> cost_of_transfers = {0, 1, 1.1};

}  // namespace

std::uint32_t transfers_of_eviction(const EvictionCandidate& candidate) {
  const std::uint32_t writes = candidate.dirty ? 1 : 0;
  const std::uint32_t reads = candidate.is_read_next && candidate.next_use != NextUses::never ? 1 : 0;
  return writes + reads;
}

EvictionOrder::Queue& EvictionOrder::queue_of(const EvictionCandidate& candidate) {
  Queues& queues = candidate.home_in_memory ? homes_ : others_;
  return queues[policy_ == Eviction::planned ? transfers_of_eviction(candidate) : 0];
}

EvictionOrder::Entry EvictionOrder::entry_of(TensorId tensor, const EvictionCandidate& candidate) const {
  if (policy_ == Eviction::planned) return by_next_use(tensor, candidate);
  return {candidate.last_use, 0, tensor};
}

void EvictionOrder::update(TensorId tensor, const std::optional<EvictionCandidate>& candidate) {
  const std::size_t number = slot_of(tensor);
  if (number >= candidates_.size()) candidates_.resize(number + 1);
  auto& known = candidates_[number];
  if (known == candidate) return;
  ++changes_;
  const auto size_with = [this](const EvictionCandidate& one) -> ByteCount& {
    return one.home_in_memory ? size_of_homes_ : size_;
  };
  if (known) {
    size_with(*known) -= known->size;
    queue_of(*known).erase(entry_of(tensor, *known));
    if (is_clean_and_elsewhere(*known)) clean_.erase(by_next_use(tensor, *known));
  }
  known = candidate;
  if (!known) return;
  size_with(*known) += known->size;
  queue_of(*known).insert(entry_of(tensor, *known));
  if (is_clean_and_elsewhere(*known)) clean_.insert(by_next_use(tensor, *known));
}

/// Merges the queues, each of which is in order.
bool EvictionOrder::walk(const Queues& queues, std::uint64_t position, const Visit& visit) {
  std::array<Queue::const_iterator, transfers_max + 1> next;
  for (std::size_t i = 0; i < queues.size(); ++i) next[i] = queues[i].begin();
  while (true) {
    std::optional<std::size_t> best;
    double best_cost = 0;
    for (std::size_t transfers = 0; transfers < queues.size(); ++transfers) {
      if (next[transfers] == queues[transfers].end()) continue;
      const std::uint64_t next_use = NextUses::never - next[transfers]->primary;
      // One that is asked for already is the last one.
      const double uses = next_use > position ? static_cast<double>(next_use - position) : 1e-9;
      const double cost = cost_of_transfers[transfers] / uses;
      if (best && best_cost <= cost) continue;
      best = transfers;
      best_cost = cost;
    }
    if (!best) return true;
    if (!visit((next[*best]++)->tensor)) return false;
  }
}

bool EvictionOrder::walk(std::uint64_t position, const Visit& visit) const {
  return walk(others_, position, visit);
}

bool EvictionOrder::walk_homes(std::uint64_t position, const Visit& visit) const {
  return walk(homes_, position, visit);
}

bool EvictionOrder::walk_clean_used_from(std::uint64_t from, const Visit& visit) const {
  for (const Entry& entry : clean_) {
    if (NextUses::never - entry.primary < from) return true;
    if (!visit(entry.tensor)) return false;
  }
  return true;
}

}  // namespace penstock::swap
