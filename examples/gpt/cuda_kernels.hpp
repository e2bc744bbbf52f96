#pragma once

#include "gpt/ops.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

/// The kernels of CudaOps; each function launches and returns. Activations are plain device pointers, those of void
/// bf16; parameters and gradients are tensors of bf16 or fp32. Formulas are documented in ops.hpp and host_kernels.hpp.
namespace gpt::cuda {

/// Loads all kernels for the current device. CUDA would load each at its first launch, which then waits for the device
/// (CUDA C++ Programming Guide, "Lazy Loading").
[[nodiscard]] cudaError_t load_kernels();

/// to[i] = bf16(from[i]), to nearest even; and back.
void round(cudaStream_t stream, const float* from, void* to, std::size_t count);
void widen(cudaStream_t stream, const void* from, float* to, std::size_t count);

void add(cudaStream_t stream, const float* x, float* y, std::size_t count);

/// Sums over rows are computed in at most so many parts, which are then added in order. A scratch holds one fp32 vector
/// for each part and result.
constexpr std::size_t row_parts_max = 64;

/// sums[c] = Σ_row x[row, c]; rows begin `stride` elements apart.
void column_sums(cudaStream_t stream, RowsSize size, std::uint32_t stride, const void* x, float* scratch,
                 const Gradient& sums);

/// dup[i] = bf16(dy[i] · gelu'(up[i])).
void gelu_backward(cudaStream_t stream, const float* dy, const void* up, void* dup, std::size_t count);

void layer_norm(cudaStream_t stream, RowsSize size, const float* x, DeviceTensor gain, DeviceTensor b,
                void* y, float* statistics);
struct LayerNormGradients {
  const float* x;
  DeviceTensor gain;
  const float *statistics, *dy;
  float* dx;
  Gradient dgain, db;
};
void layer_norm_backward(cudaStream_t stream, RowsSize size, const LayerNormGradients& tensors,
                         float* scratch);

void embed(cudaStream_t stream, EmbeddingSize size, const std::uint8_t* tokens, DeviceTensor embedding,
           DeviceTensor positions, float* y);
void embed_backward(cudaStream_t stream, EmbeddingSize size, const std::uint8_t* tokens, const float* dy,
                    const Gradient& dembedding, const Gradient& dpositions);

void cross_entropy(cudaStream_t stream, RowsSize size, const float* logits, const std::uint8_t* targets,
                   float* losses);
void cross_entropy_backward(cudaStream_t stream, RowsSize size, const float* logits,
                            const std::uint8_t* targets, float scale, void* dlogits);

}  // namespace gpt::cuda
