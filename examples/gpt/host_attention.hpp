#pragma once

#include "gpt/ops.hpp"

#include <cstdint>

/// The attention of HostOps, on plain pointers. Scores exist for one tile of queries by keys at a time.
namespace gpt::host {

constexpr std::uint32_t attention_tile = 64;  ///< queries, and keys

/// As Ops::attention.
void attention(AttentionSize size, const float* qkv, float* log_sums, float* y) noexcept;

/// As Ops::AttentionBackward.
struct AttentionGradients {
  const float *qkv, *log_sums, *y, *dy;
  float *projections, *dqkv;
};
void attention_backward(AttentionSize size, const AttentionGradients& tensors) noexcept;

}  // namespace gpt::host
