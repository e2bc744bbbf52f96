#pragma once

#include "kit/seeded_random.hpp"

#include <penstock/swap/access_trace.hpp>

#include <algorithm>
#include <cstdint>
#include <string>

namespace penstock::swap::test {

inline constexpr ByteCount page = 4_KiB;

/// A few tensors of one size or of up to eight pages, with uses of one, two or all three kinds of access.
inline AccessTrace random_trace(penstock::test::SeededRandom& random) {
  AccessTrace trace;
  const std::uint64_t tensors = 2 + random.below(8), uses = 4 + random.below(40),
                      accesses = 1 + random.below(3);
  const bool differ = random.below(2) == 0;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    trace.tensors.push_back({.name = "tensor " + std::to_string(i),
                             .size = page * (differ ? 1 + random.below(8) : 1),
                             .write_behind = random.below(3) == 0});
  }
  for (std::uint64_t i = 0; i < uses; ++i) {
    trace.uses.push_back(
        {static_cast<std::uint32_t>(random.below(tensors)), static_cast<Access>(random.below(accesses))});
  }
  return trace;
}

/// Between the largest tensor and all of them.
inline ByteCount random_budget(const AccessTrace& trace, penstock::test::SeededRandom& random) {
  ByteCount most, all;
  for (const auto& tensor : trace.tensors) {
    most = std::max(most, tensor.size);
    all += tensor.size;
  }
  return most + page * random.below((all - most) / page + 1);
}

}  // namespace penstock::swap::test
