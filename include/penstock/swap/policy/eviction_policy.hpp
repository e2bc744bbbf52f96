#pragma once

#include <penstock/swap/policy/access_trace.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace penstock::swap {

/// The policies that there are.
enum class Eviction : std::uint8_t { lru, planned };

/// As the configuration file spells it.
[[nodiscard]] std::string_view to_string(Eviction eviction);

/// One host copy that may go.
struct EvictionCandidate {
  tiers::TensorId tensor{};
  ByteCount size;
  bool dirty = false;                           ///< must be stored before it can go
  std::uint64_t last_use = 0;                   ///< larger is later
  std::uint64_t next_use = AccessTrace::never;  ///< uses from now; larger is further
};

/// Decides which copy goes when room is needed. Pure: no I/O, no state.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// An index into `candidates`; nothing when there are none.
  [[nodiscard]] virtual std::optional<std::size_t> choose(
      std::span<const EvictionCandidate> candidates) const = 0;
};

/// The copy that was used longest ago.
[[nodiscard]] std::unique_ptr<EvictionPolicy> make_lru_policy();
/// The copy that is used furthest in the future (Belady 1966), of equals the clean one, which costs no
/// write. Before the trace is known, as lru.
[[nodiscard]] std::unique_ptr<EvictionPolicy> make_planned_policy();

}  // namespace penstock::swap
