#pragma once

#include "swap/policy/next_uses.hpp"

#include <penstock/swap/runtime_options.hpp>

#include <compare>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <set>
#include <vector>

namespace penstock::swap {

/// A host copy that may be evicted.
struct EvictionCandidate {
  bool home_in_memory = false;               ///< see TensorDescription
  bool dirty = false;                        ///< must be stored before it can be dropped
  std::uint64_t last_use = 0;                ///< larger is later
  std::uint64_t next_use = NextUses::never;  ///< position in the trace; larger is further
  bool operator==(const EvictionCandidate&) const = default;
};

/// The rank of a candidate; the smallest is evicted first.
struct EvictionRank {
  bool home_in_memory = false;
  std::uint64_t primary = 0, secondary = 0;
  auto operator<=>(const EvictionRank&) const = default;
};
/// A pure function. `planned` evicts a clean copy before a dirty one that is used at the same position, since it
/// costs no write.
[[nodiscard]] EvictionRank eviction_rank(Eviction policy, const EvictionCandidate& candidate);

/// All candidates, in the order in which they are evicted. Each call takes O(log n).
///
/// A request evicts the first candidate by the rank of the policy. A prefetch evicts the clean candidate whose next use
/// is furthest away, with both policies: only a copy that is used later than the prefetched tensor is worth its room.
/// It evicts none at home in memory.
///
/// Pure; owned by one thread.
class EvictionOrder {
 public:
  explicit EvictionOrder(Eviction policy) : policy_(policy) {}

  /// Replaces the candidate of `tensor`; none: the tensor may not be evicted.
  void update(tiers::TensorId tensor, const std::optional<EvictionCandidate>& candidate);

  /// The first of all candidates, clean and dirty.
  [[nodiscard]] std::optional<tiers::TensorId> first() const;
  /// The clean candidate whose next use is furthest away, if that is at `position` or later.
  [[nodiscard]] std::optional<tiers::TensorId> first_clean_used_from(std::uint64_t position) const;

 private:
  struct Entry {
    EvictionRank rank;
    tiers::TensorId tensor{};
    auto operator<=>(const Entry&) const = default;
  };
  using Queue = std::pmr::set<Entry>;

  static void move(Queue& queue, tiers::TensorId tensor, const std::optional<EvictionRank>& from,
                   const std::optional<EvictionRank>& to);

  Eviction policy_;
  std::pmr::unsynchronized_pool_resource nodes_;
  Queue all_{&nodes_};                                        // by the rank of the policy
  Queue clean_by_use_{&nodes_};                               // by the rank of Eviction::planned
  std::vector<std::optional<EvictionCandidate>> candidates_;  // by tensor
};

}  // namespace penstock::swap
