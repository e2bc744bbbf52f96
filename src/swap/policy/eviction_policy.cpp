#include "swap/policy/eviction_policy.hpp"

#include "tiers/store/tensor_slot.hpp"

#include <utility>

namespace penstock::swap {

using tiers::slot_of;
using tiers::TensorId;

EvictionRank eviction_rank(Eviction policy, const EvictionCandidate& candidate) {
  if (policy != Eviction::planned) return {candidate.home_in_memory, candidate.last_use, 0};
  const std::uint64_t dirty = candidate.dirty ? std::uint64_t{1} << 63 : 0;
  return {candidate.home_in_memory, NextUses::never - candidate.next_use, dirty | candidate.last_use};
}

void EvictionOrder::move(Queue& queue, TensorId tensor, const std::optional<EvictionRank>& from,
                         const std::optional<EvictionRank>& to) {
  if (from == to) return;
  if (from && to) {
    auto node = queue.extract({*from, tensor});
    node.value().rank = *to;
    queue.insert(std::move(node));
  } else if (from) {
    queue.erase({*from, tensor});
  } else {
    queue.insert({*to, tensor});
  }
}

void EvictionOrder::update(TensorId tensor, const std::optional<EvictionCandidate>& candidate) {
  const std::size_t number = slot_of(tensor);
  if (number >= candidates_.size()) candidates_.resize(number + 1);
  auto& known = candidates_[number];
  if (known == candidate) return;
  const auto rank = [this](const auto& one) {
    return one ? std::optional(eviction_rank(policy_, *one)) : std::nullopt;
  };
  const auto clean_rank = [](const auto& one) {
    return one && !one->dirty && !one->home_in_memory ? std::optional(eviction_rank(Eviction::planned, *one))
                                                      : std::nullopt;
  };
  move(all_, tensor, rank(known), rank(candidate));
  move(clean_by_use_, tensor, clean_rank(known), clean_rank(candidate));
  known = candidate;
}

std::optional<TensorId> EvictionOrder::first() const {
  return all_.empty() ? std::nullopt : std::optional(all_.begin()->tensor);
}

std::optional<TensorId> EvictionOrder::first_clean_used_from(std::uint64_t position) const {
  if (clean_by_use_.empty()) return std::nullopt;
  const TensorId tensor = clean_by_use_.begin()->tensor;
  const bool is_late_enough = candidates_[slot_of(tensor)]->next_use >= position;
  return is_late_enough ? std::optional(tensor) : std::nullopt;
}

}  // namespace penstock::swap
