#include "swap/policy/eviction_policy.hpp"

#include "base/splitmix64.hpp"

#include <algorithm>
#include <tuple>

namespace penstock::swap {

using tiers::TensorId;

EvictionRank eviction_rank(Eviction policy, const EvictionCandidate& candidate) {
  if (policy == Eviction::lru) return {candidate.last_use, 0};
  const std::uint64_t dirty = candidate.dirty ? std::uint64_t{1} << 63 : 0;
  return {AccessTrace::never - candidate.next_use, dirty | candidate.last_use};
}

namespace {

/// The priority of a node: as good as random, so that the depth is O(log n).
std::uint64_t priority(std::uint32_t node) {
  return splitmix64_mix((std::uint64_t{node} + 1) * splitmix64_step);
}

}  // namespace

void EvictionOrder::update(TensorId tensor, const std::optional<EvictionCandidate>& candidate) {
  const auto number = static_cast<Link>(tensor);
  if (number >= nodes_.size()) nodes_.resize(number + 1);
  Node& node = nodes_[number];
  Node next;
  if (candidate) {
    next = {.rank = eviction_rank(policy_, *candidate),
            .next_use = candidate->next_use,
            .dirty = candidate->dirty,
            .held = true};
  }
  const bool same = node.held == next.held && node.dirty == next.dirty && node.rank == next.rank &&
                    node.next_use == next.next_use;
  if (same) return;
  if (node.held) erase(root_, number);
  node = next;
  if (node.held) insert(root_, number);
}

std::optional<TensorId> EvictionOrder::first() const {
  if (root_ == none) return std::nullopt;
  Link node = root_;
  while (nodes_[node].left != none) node = nodes_[node].left;
  return TensorId(node);
}

std::optional<TensorId> EvictionOrder::first_clean_used_from(std::uint64_t position) const {
  if (!reaches(root_, position)) return std::nullopt;
  for (Link at = root_;;) {
    const Node& node = nodes_[at];
    if (reaches(node.left, position)) {
      at = node.left;
    } else if (!node.dirty && node.next_use >= position) {
      return TensorId(at);
    } else {
      at = node.right;
    }
  }
}

/// Whether a clean candidate of the subtree is used at `position` or later.
bool EvictionOrder::reaches(Link subtree, std::uint64_t position) const {
  return subtree != none && nodes_[subtree].latest_clean_use >= position;  // false if there is none
}

bool EvictionOrder::is_before(Link a, Link b) const {
  return std::tie(nodes_[a].rank, a) < std::tie(nodes_[b].rank, b);
}

/// Call after the children of `root` have changed.
void EvictionOrder::refresh(Link root) {
  Node& node = nodes_[root];
  node.latest_clean_use = node.dirty ? std::nullopt : std::optional(node.next_use);
  for (const Link child : {node.left, node.right}) {
    if (child != none)
      node.latest_clean_use = std::max(node.latest_clean_use, nodes_[child].latest_clean_use);
  }
}

/// Splits a subtree into the nodes before node `at` and those after it.
void EvictionOrder::split(Link root, Link at, Link& before, Link& after) {
  if (root == none) {
    before = after = none;
    return;
  }
  if (is_before(root, at)) {
    before = root;
    split(nodes_[root].right, at, nodes_[root].right, after);
  } else {
    after = root;
    split(nodes_[root].left, at, before, nodes_[root].left);
  }
  refresh(root);
}

/// Merges two subtrees; every node of `before` is before every node of `after`.
EvictionOrder::Link EvictionOrder::merged(Link before, Link after) {
  if (before == none || after == none) return before == none ? after : before;
  const bool before_is_root = priority(before) > priority(after);
  const Link root = before_is_root ? before : after;
  if (before_is_root) {
    nodes_[root].right = merged(nodes_[root].right, after);
  } else {
    nodes_[root].left = merged(before, nodes_[root].left);
  }
  refresh(root);
  return root;
}

void EvictionOrder::insert(Link& root, Link node) {
  if (root == none || priority(node) > priority(root)) {
    split(root, node, nodes_[node].left, nodes_[node].right);
    root = node;
  } else {
    insert(is_before(node, root) ? nodes_[root].left : nodes_[root].right, node);
  }
  refresh(root);
}

void EvictionOrder::erase(Link& root, Link node) {
  if (root == node) {
    root = merged(nodes_[node].left, nodes_[node].right);
    return;
  }
  erase(is_before(node, root) ? nodes_[root].left : nodes_[root].right, node);
  refresh(root);
}

}  // namespace penstock::swap
