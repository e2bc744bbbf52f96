#include "swap/policy/eviction_policy.hpp"

#include "tiers/store/tensor_slot.hpp"

#include <algorithm>
#include <utility>

namespace penstock::swap {

using tiers::slot_of;
using tiers::TensorId;

namespace {

bool is_clean_and_elsewhere(const EvictionCandidate& candidate) {
  return !candidate.dirty && !candidate.home_in_memory;
}

/// Of a write and a read. Of the factors that were tried, it moves fewest bytes of those that never move more than lru
/// in random orders of use; docs/policies.md.
constexpr double part_of_the_cheaper = 0.1;

bool is_read_again(const EvictionCandidate& candidate) {
  return candidate.is_read_next && candidate.next_use != NextUses::never;
}

}  // namespace

std::vector<TransferCosts> transfer_costs(std::span<const PathOptions> paths) {
  std::vector<TransferCosts> costs;
  for (const PathOptions& path : paths) {
    if (path.rate_limit <= 0) return {};
    costs.push_back(costs_at(path.rate_limit));
  }
  return costs;
}

double cost_of_eviction(const EvictionCandidate& candidate, const TransferCosts& costs) {
  const double read = is_read_again(candidate) ? costs.read : 0, write = candidate.dirty ? costs.write : 0;
  return std::max(read, write) + part_of_the_cheaper * std::min(read, write);
}

EvictionOrder::EvictionOrder(Eviction policy, std::span<const TransferCosts> paths) : policy_(policy) {
  constexpr TransferCosts alike;
  if (paths.empty()) paths = {&alike, 1};
  for (const TransferCosts& costs : paths) {
    std::array<std::size_t, 4>& queues = queues_of_.emplace_back();
    for (const bool dirty : {false, true}) {
      for (const bool read : {false, true}) {
        const EvictionCandidate one{.dirty = dirty, .is_read_next = read, .next_use = 0};
        queues[(dirty ? 2u : 0u) + (read ? 1u : 0u)] = number_of(cost_of_eviction(one, costs));
      }
    }
  }
  for (Queues* const queues : {&others_, &homes_}) {
    queues->reserve(costs_.size());
    for (std::size_t i = 0; i < costs_.size(); ++i) queues->emplace_back(&nodes_);
  }
  cursors_.reserve(costs_.size());
}

/// Of the queue for this cost.
std::size_t EvictionOrder::number_of(double cost) {
  const auto found = std::find(costs_.begin(), costs_.end(), cost);
  const auto number = static_cast<std::size_t>(found - costs_.begin());
  if (found == costs_.end()) costs_.push_back(cost);
  return number;
}

EvictionOrder::Queue& EvictionOrder::queue_of(const EvictionCandidate& candidate) {
  Queues& queues = candidate.home_in_memory ? homes_ : others_;
  if (policy_ != Eviction::planned) return queues.front();
  const auto& of_path = queues_of_[queues_of_.size() == 1 ? 0 : candidate.path];
  return queues[of_path[(candidate.dirty ? 2u : 0u) + (is_read_again(candidate) ? 1u : 0u)]];
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
bool EvictionOrder::walk(const Queues& queues, std::uint64_t position, const Visit& visit) const {
  cursors_.clear();
  for (const Queue& queue : queues) cursors_.push_back(queue.begin());
  while (true) {
    std::optional<std::size_t> best;
    double best_cost = 0;
    for (std::size_t i = 0; i < queues.size(); ++i) {
      if (cursors_[i] == queues[i].end()) continue;
      const std::uint64_t next_use = NextUses::never - cursors_[i]->primary;
      // One that is asked for already is the last one.
      const double uses = next_use > position ? static_cast<double>(next_use - position) : 1e-9;
      const double cost = costs_[i] / uses;
      if (best && best_cost <= cost) continue;
      best = i;
      best_cost = cost;
    }
    if (!best) return true;
    if (!visit((cursors_[*best]++)->tensor)) return false;
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
