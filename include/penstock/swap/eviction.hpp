#pragma once

#include <cstdint>
#include <string_view>

namespace penstock::swap {

/// Which host copy is evicted when room is needed.
enum class Eviction : std::uint8_t {
  lru,      ///< the one that was used longest ago
  planned,  ///< the one that is used furthest in the future (Belady 1966); as lru until the order of use is known
};

[[nodiscard]] constexpr std::string_view to_string(Eviction eviction) {
  switch (eviction) {
    case Eviction::lru: return "lru";
    case Eviction::planned: return "planned";
  }
  return "unknown";
}

}  // namespace penstock::swap
