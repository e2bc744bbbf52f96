#pragma once

#include <cstdint>

namespace penstock {

// splitmix64 (Steele, Lea, Flood 2014): equal bits on every platform.

/// What is added between two numbers: odd, and near 2^64 divided by the golden ratio.
inline constexpr std::uint64_t splitmix64_step = 0x9e3779b97f4a7c15u;

/// Its finaliser: every bit of `x` reaches every bit of the result.
[[nodiscard]] constexpr std::uint64_t splitmix64_mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// The next number of the sequence that `state` stands in.
[[nodiscard]] constexpr std::uint64_t splitmix64_next(std::uint64_t& state) {
  return splitmix64_mix(state += splitmix64_step);
}

}  // namespace penstock
