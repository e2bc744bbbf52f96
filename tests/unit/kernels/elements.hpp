#pragma once

#include "kit/seeded_random.hpp"

#include <penstock/base/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace penstock::test {

inline constexpr DType dtypes[] = {DType::fp32, DType::bf16, DType::fp16};

/// Elements of magnitude 2^-15 to 2^15 in any dtype, subnormals of fp16 among them.
inline std::vector<std::byte> elements(std::uint64_t count, DType dtype, std::uint64_t seed) {
  SeededRandom random(seed);
  std::vector<std::byte> bytes(count * size_of(dtype).value());
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto sign = static_cast<std::uint32_t>(random.below(2));
    if (dtype == DType::fp32) {
      const auto bits =
          static_cast<std::uint32_t>(sign << 31 | (112 + random.below(30)) << 23 | random.below(1 << 23));
      std::memcpy(&bytes[4 * i], &bits, 4);
    } else {
      const std::uint64_t exponent = dtype == DType::bf16 ? 112 + random.below(30) : random.below(31);
      const unsigned fraction_bits = dtype == DType::bf16 ? 7 : 10;
      const auto bits = static_cast<std::uint16_t>(sign << 15 | exponent << fraction_bits |
                                                   random.below(1u << fraction_bits));
      std::memcpy(&bytes[2 * i], &bits, 2);
    }
  }
  return bytes;
}

}  // namespace penstock::test
