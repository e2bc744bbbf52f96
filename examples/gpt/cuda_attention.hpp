#pragma once

#include "gpt/ops.hpp"

#include <cuda_runtime_api.h>

/// The attention of CudaOps, on plain device pointers; each function launches and returns. As Ops::attention and
/// Ops::AttentionBackward say, with products of bf16 operands and fp32 sums.
namespace gpt::cuda {

constexpr std::uint32_t attention_head_width_max = 128;

/// Loads the kernels, as load_kernels() does.
[[nodiscard]] cudaError_t load_attention_kernels();

void attention(cudaStream_t stream, AttentionSize size, const float* qkv, float* log_sums, float* y);

struct AttentionGradients {
  const float *qkv, *log_sums, *y, *dy;
  float *projections, *dqkv;
};
void attention_backward(cudaStream_t stream, AttentionSize size, const AttentionGradients& tensors);

}  // namespace gpt::cuda
