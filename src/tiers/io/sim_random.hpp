#pragma once

#include "base/splitmix64.hpp"

#include <cstdint>

namespace penstock::tiers {

/// How many of the unflushed changes survive a power cut. `nothing` and `all` are chosen often, because they find most
/// errors of protocols.
enum class Survival : std::uint8_t { nothing, all, some };

[[nodiscard]] inline Survival choose_survival(std::uint64_t& state) noexcept {
  const std::uint64_t choice = splitmix64_next(state) % 4;
  return choice < 2 ? static_cast<Survival>(choice) : Survival::some;
}

/// Whether one change of several survives.
[[nodiscard]] inline bool survives(Survival survival, std::uint64_t& state) noexcept {
  return survival == Survival::all || (survival == Survival::some && splitmix64_next(state) % 2 == 0);
}

}  // namespace penstock::tiers
