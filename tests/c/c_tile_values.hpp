#pragma once

#include <penstock/penstock.h>

#include <cstddef>
#include <cstdint>
#include <vector>

// What tests of updates through the C interface begin with.
namespace penstock::test {

inline constexpr penstock_hyperparameters tile_hyperparameters{.size = sizeof(tile_hyperparameters),
                                                               .learning_rate = 0.01f,
                                                               .beta1 = 0.8f,
                                                               .beta2 = 0.99f,
                                                               .epsilon = 1e-6f,
                                                               .weight_decay = 0.1f,
                                                               .decoupled_decay = 1,
                                                               .bias_correction = 1};

inline std::vector<float> tile_masters(std::size_t count) {
  std::vector<float> masters(count);
  for (std::size_t i = 0; i < count; ++i) masters[i] = 0.001f * static_cast<float>(i % 501) - 0.2f;
  return masters;
}

/// In bf16.
inline std::vector<std::uint16_t> tile_gradient(std::size_t count) {
  std::vector<std::uint16_t> gradient(count);
  for (std::size_t i = 0; i < count; ++i)
    gradient[i] = static_cast<std::uint16_t>(0x3c00 + i % 512 + (i % 2) * 0x8000);
  return gradient;
}

}  // namespace penstock::test
