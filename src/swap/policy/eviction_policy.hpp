#pragma once

#include "swap/policy/access_trace.hpp"

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
  bool dirty = false;                           ///< must be stored before it can be dropped
  std::uint64_t last_use = 0;                   ///< larger is later
  std::uint64_t next_use = AccessTrace::never;  ///< position in the trace; larger is further
};

/// The rank of a candidate; the smallest is evicted first.
struct EvictionRank {
  std::uint64_t primary = 0, secondary = 0;
  auto operator<=>(const EvictionRank&) const = default;
};
/// A pure function. `planned` evicts a clean copy before a dirty one that is used at the same position, since it
/// costs no write.
[[nodiscard]] EvictionRank eviction_rank(Eviction policy, const EvictionCandidate& candidate);

/// All candidates, in the order of their rank. Each call takes O(log n).
///
/// Pure; owned by one thread.
class EvictionOrder {
 public:
  explicit EvictionOrder(Eviction policy) : policy_(policy) {}

  /// Replaces the candidate of `tensor`; none: the tensor may not be evicted.
  void update(tiers::TensorId tensor, const std::optional<EvictionCandidate>& candidate);

  /// The first of all candidates, clean and dirty.
  [[nodiscard]] std::optional<tiers::TensorId> first() const;
  /// The first of the clean candidates whose next use is at `position` or later.
  [[nodiscard]] std::optional<tiers::TensorId> first_clean_used_from(std::uint64_t position) const;

 private:
  struct Entry {
    EvictionRank rank;
    tiers::TensorId tensor{};
    std::uint64_t next_use = 0;
    auto operator<=>(const Entry&) const = default;
  };
  struct Place {
    Entry entry;
    bool dirty = false, held = false;
  };

  Eviction policy_;
  std::pmr::unsynchronized_pool_resource nodes_;
  std::pmr::set<Entry> clean_{&nodes_}, dirty_{&nodes_};
  std::vector<Place> places_;  // by tensor
};

}  // namespace penstock::swap
