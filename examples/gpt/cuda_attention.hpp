#pragma once

#include "gpt/ops.hpp"

#include <cuda_runtime_api.h>

/// The attention of CudaOps, on plain device pointers, those of void bf16; each function launches and returns. As
/// Ops::attention and Ops::AttentionBackward say.
namespace gpt::cuda {

/// A head's width and an adapter's rank are multiples of 8, so that their rows are aligned to 16 bytes.
constexpr OpsLimits attention_limits{.head_width_max = 128, .head_width_multiple = 8, .rank_multiple = 8};

/// Loads the kernels, as load_kernels() does.
[[nodiscard]] cudaError_t load_attention_kernels();

void attention(cudaStream_t stream, AttentionSize size, const void* qkv, float* log_sums, void* y);

struct AttentionGradients {
  const void* qkv;
  const float* log_sums;
  const void *y, *dy;
  float* projections;
  void* dqkv;
};
void attention_backward(cudaStream_t stream, AttentionSize size, const AttentionGradients& tensors);

}  // namespace gpt::cuda
