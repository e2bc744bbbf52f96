#pragma once

#include "gpt/ops.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

/// The kernels of CudaOps, on plain device pointers; each function launches and returns. They correspond to the
/// functions of host_kernels.hpp, where the formulas are documented.
namespace gpt::cuda {

/// Loads all kernels for the current device. CUDA would load each at its first launch, which then waits for the device
/// (CUDA C++ Programming Guide, "Lazy Loading").
[[nodiscard]] cudaError_t load_kernels();

void widen_bf16(cudaStream_t stream, const void* from, float* to, std::size_t count);
void store_bf16(cudaStream_t stream, const float* from, void* to, std::size_t count, GradientWrite write);
void store_fp32(cudaStream_t stream, const float* from, float* to, std::size_t count, GradientWrite write);

void add(cudaStream_t stream, const float* x, float* y, std::size_t count);
void add_bias(cudaStream_t stream, RowsSize size, const float* b, float* y);
void column_sums(cudaStream_t stream, RowsSize size, const float* x, float* sums);

void layer_norm(cudaStream_t stream, RowsSize size, const float* x, const float* gain, const float* b,
                float* y, float* statistics);
void layer_norm_backward(cudaStream_t stream, RowsSize size, const float* x, const float* gain,
                         const float* statistics, const float* dy, float* dx, float* dgain, float* db);

void gelu(cudaStream_t stream, const float* x, float* y, std::size_t count);
void gelu_backward(cudaStream_t stream, const float* x, const float* dy, float* dx, std::size_t count);

void embed(cudaStream_t stream, EmbeddingSize size, const std::uint8_t* tokens, const float* embedding,
           const float* positions, float* y);
void embed_backward(cudaStream_t stream, EmbeddingSize size, const std::uint8_t* tokens, const float* dy,
                    float* dembedding, float* dpositions);

void cross_entropy(cudaStream_t stream, RowsSize size, const float* logits, const std::uint8_t* targets,
                   float* losses);
void cross_entropy_backward(cudaStream_t stream, RowsSize size, const float* logits,
                            const std::uint8_t* targets, float scale, float* dlogits);

}  // namespace gpt::cuda
