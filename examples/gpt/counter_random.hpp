#pragma once

#include <cstdint>
#include <initializer_list>

namespace gpt {

/// 64 random bits that depend on the counters alone: splitmix64's finaliser over each in turn (Steele, Lea,
/// Flood 2014). Stateless, so that each number can be computed independently.
[[nodiscard]] constexpr std::uint64_t random_bits(std::initializer_list<std::uint64_t> counters) {
  std::uint64_t x = 0;
  for (const std::uint64_t counter : counters) {
    x = (x ^ counter) + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return x;
}

}  // namespace gpt
