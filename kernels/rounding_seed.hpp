#pragma once

#include "base/splitmix64.hpp"

#include <cstdint>

namespace penstock::kernels {

/// The seed of stochastic rounding in step number `step`, for the block whose first element has the number
/// `first_element` in the model. It does not depend on the division into tiles.
[[nodiscard]] constexpr std::uint32_t rounding_seed(std::uint64_t step, std::uint64_t first_element) {
  return static_cast<std::uint32_t>(splitmix64_mix(step * splitmix64_step + first_element) >> 32);
}

}  // namespace penstock::kernels
