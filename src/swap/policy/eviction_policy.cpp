#include <penstock/swap/policy/eviction_policy.hpp>

#include <algorithm>
#include <tuple>

namespace penstock::swap {

std::string_view to_string(Eviction eviction) {
  switch (eviction) {
    case Eviction::lru: return "lru";
    case Eviction::planned: return "planned";
  }
  return "unknown";
}

namespace {

template <class Key>
std::optional<std::size_t> least(std::span<const EvictionCandidate> candidates, Key key) {
  if (candidates.empty()) return std::nullopt;
  const auto chosen = std::min_element(candidates.begin(), candidates.end(),
                                       [&](const auto& a, const auto& b) { return key(a) < key(b); });
  return static_cast<std::size_t>(chosen - candidates.begin());
}

class LruPolicy final : public EvictionPolicy {
 public:
  std::string_view name() const override { return to_string(Eviction::lru); }
  std::optional<std::size_t> choose(std::span<const EvictionCandidate> candidates) const override {
    return least(candidates, [](const EvictionCandidate& c) { return c.last_use; });
  }
};

class PlannedPolicy final : public EvictionPolicy {
 public:
  std::string_view name() const override { return to_string(Eviction::planned); }
  std::optional<std::size_t> choose(std::span<const EvictionCandidate> candidates) const override {
    return least(candidates, [](const EvictionCandidate& c) {
      return std::tuple(AccessTrace::never - c.next_use, c.dirty, c.last_use);
    });
  }
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lru_policy() {
  return std::make_unique<LruPolicy>();
}
std::unique_ptr<EvictionPolicy> make_planned_policy() {
  return std::make_unique<PlannedPolicy>();
}

}  // namespace penstock::swap
