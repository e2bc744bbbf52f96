#include "swap/policy/eviction_policy.hpp"

namespace penstock::swap {

using tiers::TensorId;

EvictionRank eviction_rank(Eviction policy, const EvictionCandidate& candidate) {
  if (policy == Eviction::lru) return {candidate.last_use, 0};
  const std::uint64_t dirty = candidate.dirty ? std::uint64_t{1} << 63 : 0;
  return {AccessTrace::never - candidate.next_use, dirty | candidate.last_use};
}

void EvictionOrder::update(TensorId tensor, const std::optional<EvictionCandidate>& candidate) {
  const auto number = static_cast<std::size_t>(tensor);
  if (number >= places_.size()) places_.resize(number + 1);
  Place& place = places_[number];
  const Place next =
      candidate
          ? Place{{eviction_rank(policy_, *candidate), tensor, candidate->next_use}, candidate->dirty, true}
          : Place{};
  if (place.held == next.held && place.dirty == next.dirty && place.entry == next.entry) return;
  if (place.held) (place.dirty ? dirty_ : clean_).erase(place.entry);
  if (next.held) (next.dirty ? dirty_ : clean_).insert(next.entry);
  place = next;
}

std::optional<TensorId> EvictionOrder::first() const {
  if (clean_.empty() && dirty_.empty()) return std::nullopt;
  if (dirty_.empty()) return clean_.begin()->tensor;
  if (clean_.empty()) return dirty_.begin()->tensor;
  return std::min(*clean_.begin(), *dirty_.begin()).tensor;
}

std::optional<TensorId> EvictionOrder::first_clean_used_from(std::uint64_t position) const {
  for (const Entry& entry : clean_) {
    if (entry.next_use >= position) return entry.tensor;
    if (policy_ == Eviction::planned) break;  // all further ones are used sooner
  }
  return std::nullopt;
}

}  // namespace penstock::swap
