#include "gpt/cuda_kernels.hpp"

#include <cuda_bf16.h>

#include <algorithm>

namespace gpt::cuda {

namespace {

constexpr unsigned block_size = 256;  // a power of two, for the reduction tree
constexpr float layer_norm_epsilon = 1e-5f;
constexpr float gelu_slope = 0.7978845608028654f;  // sqrt(2 / π)
constexpr float gelu_cubic = 0.044715f;

unsigned blocks_for(std::size_t count) {
  constexpr std::size_t most = 4096;
  return static_cast<unsigned>(std::clamp<std::size_t>((count + block_size - 1) / block_size, 1, most));
}

__device__ std::size_t first_index() {
  return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ std::size_t index_stride() {
  return std::size_t{gridDim.x} * blockDim.x;
}

struct Sum {
  __device__ static float join(float a, float b) { return a + b; }
};
struct Maximum {
  __device__ static float join(float a, float b) { return fmaxf(a, b); }
  static constexpr float neutral = -3.402823466e38f;  // the lowest finite value
};

// Reduces the values of all threads in a fixed tree; all threads get the result.
template <class Operation>
__device__ float reduce(float value) {
  __shared__ float shared[block_size];
  shared[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = block_size / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      shared[threadIdx.x] = Operation::join(shared[threadIdx.x], shared[threadIdx.x + half]);
    }
    __syncthreads();
  }
  const float result = shared[0];
  __syncthreads();  // the next reduction writes here
  return result;
}

__global__ void widen_bf16_kernel(const __nv_bfloat16* from, float* to, std::size_t count) {
  for (std::size_t i = first_index(); i < count; i += index_stride()) to[i] = __bfloat162float(from[i]);
}

__global__ void store_bf16_kernel(const float* from, __nv_bfloat16* to, std::size_t count, bool accumulate) {
  for (std::size_t i = first_index(); i < count; i += index_stride()) {
    to[i] = __float2bfloat16_rn(accumulate ? __bfloat162float(to[i]) + from[i] : from[i]);
  }
}

__global__ void store_fp32_kernel(const float* from, float* to, std::size_t count, bool accumulate) {
  for (std::size_t i = first_index(); i < count; i += index_stride()) {
    to[i] = accumulate ? to[i] + from[i] : from[i];
  }
}

__global__ void add_bias_kernel(RowsSize size, const float* b, float* y) {
  const std::size_t count = std::size_t{size.rows} * size.columns;
  for (std::size_t i = first_index(); i < count; i += index_stride()) y[i] += b[i % size.columns];
}

// One thread per column: reads are coalesced, and the order over rows is fixed.
__global__ void column_sums_kernel(RowsSize size, const float* x, float* sums) {
  for (std::size_t c = first_index(); c < size.columns; c += index_stride()) {
    float sum = 0;
    for (std::size_t row = 0; row < size.rows; ++row) sum += x[row * size.columns + c];
    sums[c] = sum;
  }
}

// The following kernels use one thread block per row unless noted.
__global__ void layer_norm_kernel(std::uint32_t columns, const float* x, const float* gain, const float* b,
                                  float* y, float* statistics) {
  x += std::size_t{blockIdx.x} * columns;
  y += std::size_t{blockIdx.x} * columns;
  float sum = 0;
  for (unsigned c = threadIdx.x; c < columns; c += block_size) sum += x[c];
  const float mean = reduce<Sum>(sum) / static_cast<float>(columns);
  float squares = 0;
  for (unsigned c = threadIdx.x; c < columns; c += block_size) squares += (x[c] - mean) * (x[c] - mean);
  const float variance = reduce<Sum>(squares) / static_cast<float>(columns);
  const float rstd = 1.0f / sqrtf(variance + layer_norm_epsilon);
  for (unsigned c = threadIdx.x; c < columns; c += block_size) y[c] = (x[c] - mean) * rstd * gain[c] + b[c];
  if (threadIdx.x == 0) {
    statistics[2 * std::size_t{blockIdx.x}] = mean;
    statistics[2 * std::size_t{blockIdx.x} + 1] = rstd;
  }
}

// One thread per column.
__global__ void layer_norm_parameters_kernel(RowsSize size, const float* x, const float* statistics,
                                             const float* dy, float* dgain, float* db) {
  for (std::size_t c = first_index(); c < size.columns; c += index_stride()) {
    float gain = 0, bias = 0;
    for (std::size_t row = 0; row < size.rows; ++row) {
      const std::size_t i = row * size.columns + c;
      gain += dy[i] * (x[i] - statistics[2 * row]) * statistics[2 * row + 1];
      bias += dy[i];
    }
    dgain[c] = gain;
    db[c] = bias;
  }
}

__global__ void layer_norm_backward_kernel(std::uint32_t columns, const float* x, const float* gain,
                                           const float* statistics, const float* dy, float* dx) {
  const std::size_t row = blockIdx.x;
  x += row * columns, dy += row * columns, dx += row * columns;
  const float mean = statistics[2 * row], rstd = statistics[2 * row + 1];
  float sum = 0, projected = 0;
  for (unsigned c = threadIdx.x; c < columns; c += block_size) {
    sum += dy[c] * gain[c];
    projected += dy[c] * gain[c] * (x[c] - mean) * rstd;
  }
  sum = reduce<Sum>(sum) / static_cast<float>(columns);
  projected = reduce<Sum>(projected) / static_cast<float>(columns);
  for (unsigned c = threadIdx.x; c < columns; c += block_size) {
    dx[c] = (dy[c] * gain[c] - sum - (x[c] - mean) * rstd * projected) * rstd;
  }
}

__device__ float gelu_gate(float x) {
  const float u = gelu_slope * (x + gelu_cubic * x * x * x);
  return 1.0f / (1.0f + expf(fminf(-2.0f * u, 88.0f)));
}

__global__ void gelu_kernel(const float* x, float* y, std::size_t count) {
  for (std::size_t i = first_index(); i < count; i += index_stride()) y[i] = x[i] * gelu_gate(x[i]);
}

__global__ void gelu_backward_kernel(const float* x, const float* dy, float* dx, std::size_t count) {
  for (std::size_t i = first_index(); i < count; i += index_stride()) {
    const float gate = gelu_gate(x[i]);
    const float du = gelu_slope * (1.0f + 3.0f * gelu_cubic * x[i] * x[i]);
    dx[i] = dy[i] * (gate + x[i] * gate * (1.0f - gate) * 2.0f * du);
  }
}

__global__ void embed_kernel(EmbeddingSize size, const std::uint8_t* tokens, const float* embedding,
                             const float* positions, float* y) {
  const std::size_t count = std::size_t{size.sequences} * size.context * size.width;
  for (std::size_t i = first_index(); i < count; i += index_stride()) {
    const std::size_t row = i / size.width, c = i % size.width;
    y[i] =
        embedding[std::size_t{tokens[row]} * size.width + c] + positions[row % size.context * size.width + c];
  }
}

// One thread per element of the embedding loops over all rows: slower than atomics, but the order is fixed.
__global__ void embed_backward_kernel(EmbeddingSize size, const std::uint8_t* tokens, const float* dy,
                                      float* dembedding) {
  const std::size_t rows = std::size_t{size.sequences} * size.context;
  const std::size_t count = std::size_t{size.vocabulary} * size.width;
  for (std::size_t i = first_index(); i < count; i += index_stride()) {
    const std::size_t token = i / size.width, c = i % size.width;
    float sum = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      if (tokens[row] == token) sum += dy[row * size.width + c];
    }
    dembedding[i] = sum;
  }
}

__global__ void positions_backward_kernel(EmbeddingSize size, const float* dy, float* dpositions) {
  const std::size_t count = std::size_t{size.context} * size.width;
  for (std::size_t i = first_index(); i < count; i += index_stride()) {
    float sum = 0;
    for (std::size_t sequence = 0; sequence < size.sequences; ++sequence) sum += dy[sequence * count + i];
    dpositions[i] = sum;
  }
}

// The largest logit of a row and the sum of exp(logit − largest).
__device__ void softmax_terms(std::uint32_t columns, const float* logits, float& largest, float& sum) {
  largest = Maximum::neutral;
  for (unsigned c = threadIdx.x; c < columns; c += block_size) largest = fmaxf(largest, logits[c]);
  largest = reduce<Maximum>(largest);
  sum = 0;
  for (unsigned c = threadIdx.x; c < columns; c += block_size) sum += expf(logits[c] - largest);
  sum = reduce<Sum>(sum);
}

__global__ void cross_entropy_kernel(std::uint32_t columns, const float* logits, const std::uint8_t* targets,
                                     float* losses) {
  logits += std::size_t{blockIdx.x} * columns;
  float largest, sum;
  softmax_terms(columns, logits, largest, sum);
  if (threadIdx.x == 0) losses[blockIdx.x] = logf(sum) + largest - logits[targets[blockIdx.x]];
}

__global__ void cross_entropy_backward_kernel(std::uint32_t columns, const float* logits,
                                              const std::uint8_t* targets, float scale, float* dlogits) {
  logits += std::size_t{blockIdx.x} * columns;
  dlogits += std::size_t{blockIdx.x} * columns;
  float largest, sum;
  softmax_terms(columns, logits, largest, sum);
  for (unsigned c = threadIdx.x; c < columns; c += block_size) {
    dlogits[c] = scale * (expf(logits[c] - largest) / sum - (c == targets[blockIdx.x] ? 1.0f : 0.0f));
  }
}

}  // namespace

cudaError_t load_kernels() {
  cudaError_t error = cudaSuccess;
  const auto load = [&error](auto*... kernels) {
    cudaFuncAttributes attributes{};
    ((error = error != cudaSuccess ? error : cudaFuncGetAttributes(&attributes, kernels)), ...);
  };
  load(widen_bf16_kernel, store_bf16_kernel, store_fp32_kernel, add_bias_kernel, column_sums_kernel,
       layer_norm_kernel, layer_norm_parameters_kernel, layer_norm_backward_kernel, gelu_kernel,
       gelu_backward_kernel, embed_kernel, embed_backward_kernel, positions_backward_kernel,
       cross_entropy_kernel, cross_entropy_backward_kernel);
  return error;
}

void widen_bf16(cudaStream_t stream, const void* from, float* to, std::size_t count) {
  widen_bf16_kernel<<<blocks_for(count), block_size, 0, stream>>>(static_cast<const __nv_bfloat16*>(from), to,
                                                                  count);
}

void store_bf16(cudaStream_t stream, const float* from, void* to, std::size_t count, GradientWrite write) {
  store_bf16_kernel<<<blocks_for(count), block_size, 0, stream>>>(from, static_cast<__nv_bfloat16*>(to),
                                                                  count, write == GradientWrite::accumulate);
}

void store_fp32(cudaStream_t stream, const float* from, float* to, std::size_t count, GradientWrite write) {
  store_fp32_kernel<<<blocks_for(count), block_size, 0, stream>>>(from, to, count,
                                                                  write == GradientWrite::accumulate);
}

void add(cudaStream_t stream, const float* x, float* y, std::size_t count) {
  store_fp32(stream, x, y, count, GradientWrite::accumulate);
}

void add_bias(cudaStream_t stream, RowsSize size, const float* b, float* y) {
  const std::size_t count = std::size_t{size.rows} * size.columns;
  add_bias_kernel<<<blocks_for(count), block_size, 0, stream>>>(size, b, y);
}

void column_sums(cudaStream_t stream, RowsSize size, const float* x, float* sums) {
  column_sums_kernel<<<blocks_for(size.columns), block_size, 0, stream>>>(size, x, sums);
}

void layer_norm(cudaStream_t stream, RowsSize size, const float* x, const float* gain, const float* b,
                float* y, float* statistics) {
  layer_norm_kernel<<<size.rows, block_size, 0, stream>>>(size.columns, x, gain, b, y, statistics);
}

void layer_norm_backward(cudaStream_t stream, RowsSize size, const float* x, const float* gain,
                         const float* statistics, const float* dy, float* dx, float* dgain, float* db) {
  // Parameters first, because dx may overwrite dy.
  layer_norm_parameters_kernel<<<blocks_for(size.columns), block_size, 0, stream>>>(size, x, statistics, dy,
                                                                                    dgain, db);
  layer_norm_backward_kernel<<<size.rows, block_size, 0, stream>>>(size.columns, x, gain, statistics, dy, dx);
}

void gelu(cudaStream_t stream, const float* x, float* y, std::size_t count) {
  gelu_kernel<<<blocks_for(count), block_size, 0, stream>>>(x, y, count);
}

void gelu_backward(cudaStream_t stream, const float* x, const float* dy, float* dx, std::size_t count) {
  gelu_backward_kernel<<<blocks_for(count), block_size, 0, stream>>>(x, dy, dx, count);
}

void embed(cudaStream_t stream, EmbeddingSize size, const std::uint8_t* tokens, const float* embedding,
           const float* positions, float* y) {
  const std::size_t count = std::size_t{size.sequences} * size.context * size.width;
  embed_kernel<<<blocks_for(count), block_size, 0, stream>>>(size, tokens, embedding, positions, y);
}

void embed_backward(cudaStream_t stream, EmbeddingSize size, const std::uint8_t* tokens, const float* dy,
                    float* dembedding, float* dpositions) {
  const std::size_t elements = std::size_t{size.vocabulary} * size.width;
  embed_backward_kernel<<<blocks_for(elements), block_size, 0, stream>>>(size, tokens, dy, dembedding);
  const std::size_t places = std::size_t{size.context} * size.width;
  positions_backward_kernel<<<blocks_for(places), block_size, 0, stream>>>(size, dy, dpositions);
}

void cross_entropy(cudaStream_t stream, RowsSize size, const float* logits, const std::uint8_t* targets,
                   float* losses) {
  cross_entropy_kernel<<<size.rows, block_size, 0, stream>>>(size.columns, logits, targets, losses);
}

void cross_entropy_backward(cudaStream_t stream, RowsSize size, const float* logits,
                            const std::uint8_t* targets, float scale, float* dlogits) {
  cross_entropy_backward_kernel<<<size.rows, block_size, 0, stream>>>(size.columns, logits, targets, scale,
                                                                      dlogits);
}

}  // namespace gpt::cuda
