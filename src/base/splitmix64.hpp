#pragma once

#include <cstdint>

namespace penstock {

// splitmix64 (Steele, Lea, Flood 2014): gives the same bits on every platform.

/// The state's increment between two numbers: odd, and close to 2^64 / golden ratio.
inline constexpr std::uint64_t splitmix64_step = 0x9e3779b97f4a7c15u;

/// The finaliser: every bit of `x` affects every bit of the result.
[[nodiscard]] constexpr std::uint64_t splitmix64_mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Advances `state` and returns the next number of its sequence.
[[nodiscard]] constexpr std::uint64_t splitmix64_next(std::uint64_t& state) {
  return splitmix64_mix(state += splitmix64_step);
}

/// A hash of what `hash` is of, and then `value`.
[[nodiscard]] constexpr std::uint64_t splitmix64_add(std::uint64_t hash, std::uint64_t value) {
  return splitmix64_mix(hash + splitmix64_step + value);
}

}  // namespace penstock
