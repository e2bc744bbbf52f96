#pragma once

#include <cstdint>

namespace penstock::test {

/// splitmix64: the same choices from the same seed on every platform.
class SeededRandom {
 public:
  explicit SeededRandom(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, bound), bound > 0.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  /// Uniform in [-1, 1).
  float symmetric() { return static_cast<float>(static_cast<std::int64_t>(next()) >> 40) * 0x1p-23f; }

 private:
  std::uint64_t state_;
};

}  // namespace penstock::test
