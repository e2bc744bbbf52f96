#pragma once

#include "swap/policy/access_trace.hpp"

#include <penstock/swap/runtime_options.hpp>

#include <compare>
#include <cstdint>
#include <optional>
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
  // A treap (Seidel and Aragon 1996) in the order of the ranks. A node's number is that of its tensor, so that no call
  // allocates memory, except for a new tensor.
  using Link = std::uint32_t;
  static constexpr Link none = ~Link{0};
  struct Node {
    EvictionRank rank;
    std::uint64_t next_use = 0;
    bool dirty = false, held = false;
    std::optional<std::uint64_t>
        latest_clean_use;  // the largest next use of a clean candidate in the subtree
    Link left = none, right = none;
  };

  [[nodiscard]] bool is_before(Link a, Link b) const;
  [[nodiscard]] bool reaches(Link subtree, std::uint64_t position) const;
  void refresh(Link root);
  void split(Link root, Link at, Link& before, Link& after);
  [[nodiscard]] Link merged(Link before, Link after);
  void insert(Link& root, Link node);
  void erase(Link& root, Link node);

  Eviction policy_;
  Link root_ = none;
  std::vector<Node> nodes_;  // by tensor
};

}  // namespace penstock::swap
