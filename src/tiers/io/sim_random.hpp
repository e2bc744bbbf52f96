#pragma once

#include <cstdint>

namespace penstock::tiers {

/// The next number of a simulation's seed: splitmix64 (Steele, Lea, Flood 2014).
[[nodiscard]] inline std::uint64_t next_random(std::uint64_t& state) noexcept {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// How much of what was not flushed a power cut leaves. All and nothing come up often: that is where a protocol fails.
enum class Survival : std::uint8_t { nothing, all, some };

[[nodiscard]] inline Survival choose_survival(std::uint64_t& state) noexcept {
  const std::uint64_t choice = next_random(state) % 4;
  return choice < 2 ? static_cast<Survival>(choice) : Survival::some;
}

/// Whether one change of several survives.
[[nodiscard]] inline bool survives(Survival survival, std::uint64_t& state) noexcept {
  return survival == Survival::all || (survival == Survival::some && next_random(state) % 2 == 0);
}

}  // namespace penstock::tiers
