#pragma once

#include <cstdint>

namespace penstock::test {

/// splitmix64 (Steele, Lea, Flood 2014): the same numbers from the same seed on every platform. Independent of the
/// library's implementation, because tests share no code with the code under test.
class SeededRandom {
 public:
  explicit SeededRandom(std::uint64_t seed) : state_(seed) {}

  /// The finaliser: every bit of `x` affects every bit of the result.
  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  std::uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15u); }
  /// Uniform in [0, bound), bound > 0.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  /// Uniform in [-1, 1).
  float symmetric() { return static_cast<float>(static_cast<std::int64_t>(next()) >> 40) * 0x1p-23f; }

 private:
  std::uint64_t state_;
};

}  // namespace penstock::test
