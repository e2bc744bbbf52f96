#include "gpt/cuda_kernels.hpp"

#include "gpt/tensor_pointer.hpp"

#include <cuda_bf16.h>

#include <algorithm>
#include <type_traits>

namespace gpt::cuda {

namespace {

constexpr unsigned block_size = 256;  // a power of two, for the reduction tree
constexpr float layer_norm_epsilon = 1e-5f;

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

using Bf16 = __nv_bfloat16;

__device__ float value_of(float x) {
  return x;
}
__device__ float value_of(Bf16 x) {
  return __bfloat162float(x);
}
__device__ void assign(float& to, float x) {
  to = x;
}
__device__ void assign(Bf16& to, float x) {
  to = __float2bfloat16_rn(x);
}
/// Rounds the new gradient, or the sum of the old one and the new.
template <class Element>
__device__ void store(Element& to, float gradient, bool accumulate) {
  assign(to, accumulate ? value_of(to) + gradient : gradient);
}

template <class From, class To>
__global__ void convert_kernel(const From* from, To* to, std::size_t count) {
  for (std::size_t i = first_index(); i < count; i += index_stride()) assign(to[i], value_of(from[i]));
}

__global__ void add_kernel(const float* x, float* y, std::size_t count) {
  for (std::size_t i = first_index(); i < count; i += index_stride()) y[i] += x[i];
}

/// See host_kernels.cpp for the formula of gelu.
__global__ void gelu_backward_kernel(const float* dy, const Bf16* up, Bf16* dup, std::size_t count) {
  constexpr float slope = 0.7978845608028654f, cubic = 0.044715f;  // the first is sqrt(2 / π)
  for (std::size_t i = first_index(); i < count; i += index_stride()) {
    const float x = value_of(up[i]), square = x * x;
    const float gate = 1.0f / (1.0f + expf(-2.0f * slope * (x + cubic * square * x)));
    const float rise = 2.0f * slope * (1.0f + 3.0f * cubic * square);
    assign(dup[i], dy[i] * (gate + x * gate * (1.0f - gate) * rise));
  }
}

/// Rows [first, last) of a part, and the column of this thread.
struct Part {
  std::size_t first, last, number;
  unsigned column;

  __device__ Part(RowsSize size, unsigned part_rows) {
    const unsigned column_blocks = (size.columns + block_size - 1) / block_size;
    number = blockIdx.x / column_blocks;
    column = blockIdx.x % column_blocks * block_size + threadIdx.x;
    first = number * part_rows;
    last = min(first + part_rows, std::size_t{size.rows});
  }
};

__global__ void column_sums_kernel(RowsSize size, std::uint32_t stride, unsigned part_rows, const Bf16* x,
                                   float* sums) {
  const Part part(size, part_rows);
  if (part.column >= size.columns) return;
  float sum = 0;
  for (std::size_t row = part.first; row < part.last; ++row) sum += value_of(x[row * stride + part.column]);
  sums[part.number * size.columns + part.column] = sum;
}

/// to[c] = Σ sums[part, c], where parts begin `stride` elements apart.
template <class Element>
__global__ void join_parts_kernel(RowsSize parts, std::size_t stride, const float* sums, Element* to,
                                  bool accumulate) {
  const unsigned column = blockIdx.x * block_size + threadIdx.x;
  if (column >= parts.columns) return;
  float sum = 0;
  for (std::size_t part = 0; part < parts.rows; ++part) sum += sums[part * stride + column];
  store(to[column], sum, accumulate);
}

// The following kernels use one thread block per row unless noted.
template <class Parameter>
__global__ void layer_norm_kernel(std::uint32_t columns, const float* x, const Parameter* gain,
                                  const Parameter* b, Bf16* y, float* statistics) {
  x += std::size_t{blockIdx.x} * columns;
  y += std::size_t{blockIdx.x} * columns;
  float sum = 0;
  for (unsigned c = threadIdx.x; c < columns; c += block_size) sum += x[c];
  const float mean = reduce<Sum>(sum) / static_cast<float>(columns);
  float squares = 0;
  for (unsigned c = threadIdx.x; c < columns; c += block_size) squares += (x[c] - mean) * (x[c] - mean);
  const float variance = reduce<Sum>(squares) / static_cast<float>(columns);
  const float rstd = 1.0f / sqrtf(variance + layer_norm_epsilon);
  for (unsigned c = threadIdx.x; c < columns; c += block_size) {
    assign(y[c], (x[c] - mean) * rstd * value_of(gain[c]) + value_of(b[c]));
  }
  if (threadIdx.x == 0) {
    statistics[2 * std::size_t{blockIdx.x}] = mean;
    statistics[2 * std::size_t{blockIdx.x} + 1] = rstd;
  }
}

// One thread for each column of a part of the rows. sums[part] has a vector for the gain and one for the bias.
__global__ void layer_norm_parameters_kernel(RowsSize size, unsigned part_rows, const float* x,
                                             const float* statistics, const float* dy, float* sums) {
  const Part part(size, part_rows);
  if (part.column >= size.columns) return;
  float gain = 0, bias = 0;
  for (std::size_t row = part.first; row < part.last; ++row) {
    const std::size_t i = row * size.columns + part.column;
    gain += dy[i] * (x[i] - statistics[2 * row]) * statistics[2 * row + 1];
    bias += dy[i];
  }
  sums += 2 * part.number * size.columns + part.column;
  sums[0] = gain;
  sums[size.columns] = bias;
}

template <class Parameter>
__global__ void layer_norm_backward_kernel(std::uint32_t columns, const float* x, const Parameter* gain,
                                           const float* statistics, const float* dy, float* dx) {
  const std::size_t row = blockIdx.x;
  x += row * columns, dy += row * columns, dx += row * columns;
  const float mean = statistics[2 * row], rstd = statistics[2 * row + 1];
  float sum = 0, projected = 0;
  for (unsigned c = threadIdx.x; c < columns; c += block_size) {
    const float scaled = dy[c] * value_of(gain[c]);
    sum += scaled;
    projected += scaled * (x[c] - mean) * rstd;
  }
  sum = reduce<Sum>(sum) / static_cast<float>(columns);
  projected = reduce<Sum>(projected) / static_cast<float>(columns);
  for (unsigned c = threadIdx.x; c < columns; c += block_size) {
    dx[c] = (dy[c] * value_of(gain[c]) - sum - (x[c] - mean) * rstd * projected) * rstd;
  }
}

template <class Embedding, class Positions>
__global__ void embed_kernel(EmbeddingSize size, const std::uint8_t* tokens, const Embedding* embedding,
                             const Positions* positions, float* y) {
  const std::size_t count = std::size_t{size.sequences} * size.context * size.width;
  for (std::size_t i = first_index(); i < count; i += index_stride()) {
    const std::size_t row = i / size.width, c = i % size.width;
    y[i] = value_of(embedding[std::size_t{tokens[row]} * size.width + c]) +
           value_of(positions[row % size.context * size.width + c]);
  }
}

// One thread per element of the embedding loops over all rows: slower than atomics, but the order is fixed.
template <class Element>
__global__ void embed_backward_kernel(EmbeddingSize size, const std::uint8_t* tokens, const float* dy,
                                      Element* dembedding, bool accumulate) {
  const std::size_t rows = std::size_t{size.sequences} * size.context;
  const std::size_t count = std::size_t{size.vocabulary} * size.width;
  for (std::size_t i = first_index(); i < count; i += index_stride()) {
    const std::size_t token = i / size.width, c = i % size.width;
    float sum = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      if (tokens[row] == token) sum += dy[row * size.width + c];
    }
    store(dembedding[i], sum, accumulate);
  }
}

template <class Element>
__global__ void positions_backward_kernel(EmbeddingSize size, const float* dy, Element* dpositions,
                                          bool accumulate) {
  const std::size_t count = std::size_t{size.context} * size.width;
  for (std::size_t i = first_index(); i < count; i += index_stride()) {
    float sum = 0;
    for (std::size_t sequence = 0; sequence < size.sequences; ++sequence) sum += dy[sequence * count + i];
    store(dpositions[i], sum, accumulate);
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
                                              const std::uint8_t* targets, float scale, Bf16* dlogits) {
  logits += std::size_t{blockIdx.x} * columns;
  dlogits += std::size_t{blockIdx.x} * columns;
  float largest, sum;
  softmax_terms(columns, logits, largest, sum);
  for (unsigned c = threadIdx.x; c < columns; c += block_size) {
    const float target = c == targets[blockIdx.x] ? 1.0f : 0.0f;
    assign(dlogits[c], scale * (expf(logits[c] - largest) / sum - target));
  }
}

/// Calls `body` with a pointer to the elements of a tensor.
template <class Body>
void with_elements(DeviceTensor tensor, Body body) {
  if (tensor.dtype == penstock::DType::fp32) return body(floats(tensor));
  body(pointer<Bf16>(tensor));
}
bool accumulates(const Gradient& gradient) {
  return gradient.write == GradientWrite::accumulate;
}

unsigned rows_of_part(RowsSize size) {
  return static_cast<unsigned>((size.rows + row_parts_max - 1) / row_parts_max);
}
unsigned parts_of(RowsSize size) {
  return (size.rows + rows_of_part(size) - 1) / rows_of_part(size);
}
unsigned column_blocks(RowsSize size) {
  return (size.columns + block_size - 1) / block_size;
}

/// The gradient is the sum of the parts' vectors.
void join_parts(cudaStream_t stream, RowsSize size, std::size_t stride, const float* sums,
                const Gradient& to) {
  if (count(to.tensor) == 0) return;
  with_elements(to.tensor, [&](auto* elements) {
    join_parts_kernel<<<column_blocks(size), block_size, 0, stream>>>({parts_of(size), size.columns}, stride,
                                                                      sums, elements, accumulates(to));
  });
}

}  // namespace

cudaError_t load_kernels() {
  cudaError_t error = cudaSuccess;
  const auto load = [&error](auto*... kernels) {
    cudaFuncAttributes attributes{};
    ((error = error != cudaSuccess ? error : cudaFuncGetAttributes(&attributes, kernels)), ...);
  };
  load(convert_kernel<float, Bf16>, convert_kernel<Bf16, float>, add_kernel, gelu_backward_kernel,
       column_sums_kernel, join_parts_kernel<float>, join_parts_kernel<Bf16>, layer_norm_kernel<float>,
       layer_norm_kernel<Bf16>, layer_norm_parameters_kernel, layer_norm_backward_kernel<float>,
       layer_norm_backward_kernel<Bf16>, embed_kernel<float, float>, embed_kernel<Bf16, Bf16>,
       embed_kernel<float, Bf16>, embed_kernel<Bf16, float>, embed_backward_kernel<float>,
       embed_backward_kernel<Bf16>, positions_backward_kernel<float>, positions_backward_kernel<Bf16>,
       cross_entropy_kernel, cross_entropy_backward_kernel);
  return error;
}

void round(cudaStream_t stream, const float* from, void* to, std::size_t count) {
  convert_kernel<<<blocks_for(count), block_size, 0, stream>>>(from, static_cast<Bf16*>(to), count);
}

void widen(cudaStream_t stream, const void* from, float* to, std::size_t count) {
  convert_kernel<<<blocks_for(count), block_size, 0, stream>>>(static_cast<const Bf16*>(from), to, count);
}

void add(cudaStream_t stream, const float* x, float* y, std::size_t count) {
  add_kernel<<<blocks_for(count), block_size, 0, stream>>>(x, y, count);
}

void gelu_backward(cudaStream_t stream, const float* dy, const void* up, void* dup, std::size_t count) {
  gelu_backward_kernel<<<blocks_for(count), block_size, 0, stream>>>(dy, static_cast<const Bf16*>(up),
                                                                     static_cast<Bf16*>(dup), count);
}

void column_sums(cudaStream_t stream, RowsSize size, std::uint32_t stride, const void* x, float* scratch,
                 const Gradient& sums) {
  column_sums_kernel<<<parts_of(size) * column_blocks(size), block_size, 0, stream>>>(
      size, stride, rows_of_part(size), static_cast<const Bf16*>(x), scratch);
  join_parts(stream, size, size.columns, scratch, sums);
}

void layer_norm(cudaStream_t stream, RowsSize size, const float* x, DeviceTensor gain, DeviceTensor b,
                void* y, float* statistics) {
  with_elements(gain, [&](auto* elements) {
    using Parameter = std::remove_pointer_t<decltype(elements)>;
    layer_norm_kernel<Parameter><<<size.rows, block_size, 0, stream>>>(
        size.columns, x, elements, pointer<const Parameter>(b), static_cast<Bf16*>(y), statistics);
  });
}

void layer_norm_backward(cudaStream_t stream, RowsSize size, const LayerNormGradients& t, float* scratch) {
  // Parameters first, because dx may overwrite dy.
  if (count(t.dgain.tensor) + count(t.db.tensor) > 0) {
    layer_norm_parameters_kernel<<<parts_of(size) * column_blocks(size), block_size, 0, stream>>>(
        size, rows_of_part(size), t.x, t.statistics, t.dy, scratch);
    join_parts(stream, size, 2 * std::size_t{size.columns}, scratch, t.dgain);
    join_parts(stream, size, 2 * std::size_t{size.columns}, scratch + size.columns, t.db);
  }
  with_elements(t.gain, [&](auto* gain) {
    layer_norm_backward_kernel<<<size.rows, block_size, 0, stream>>>(
        size.columns, t.x, static_cast<const std::remove_pointer_t<decltype(gain)>*>(gain), t.statistics,
        t.dy, t.dx);
  });
}

void embed(cudaStream_t stream, EmbeddingSize size, const std::uint8_t* tokens, DeviceTensor embedding,
           DeviceTensor positions, float* y) {
  const std::size_t count = std::size_t{size.sequences} * size.context * size.width;
  with_elements(embedding, [&](auto* vectors) {
    with_elements(positions, [&](auto* places) {
      embed_kernel<std::remove_pointer_t<decltype(vectors)>, std::remove_pointer_t<decltype(places)>>
          <<<blocks_for(count), block_size, 0, stream>>>(size, tokens, vectors, places, y);
    });
  });
}

void embed_backward(cudaStream_t stream, EmbeddingSize size, const std::uint8_t* tokens, const float* dy,
                    const Gradient& dembedding, const Gradient& dpositions) {
  const std::size_t elements = std::size_t{size.vocabulary} * size.width;
  with_elements(dembedding.tensor, [&](auto* to) {
    embed_backward_kernel<<<blocks_for(elements), block_size, 0, stream>>>(size, tokens, dy, to,
                                                                           accumulates(dembedding));
  });
  const std::size_t places = std::size_t{size.context} * size.width;
  with_elements(dpositions.tensor, [&](auto* to) {
    positions_backward_kernel<<<blocks_for(places), block_size, 0, stream>>>(size, dy, to,
                                                                             accumulates(dpositions));
  });
}

void cross_entropy(cudaStream_t stream, RowsSize size, const float* logits, const std::uint8_t* targets,
                   float* losses) {
  cross_entropy_kernel<<<size.rows, block_size, 0, stream>>>(size.columns, logits, targets, losses);
}

void cross_entropy_backward(cudaStream_t stream, RowsSize size, const float* logits,
                            const std::uint8_t* targets, float scale, void* dlogits) {
  cross_entropy_backward_kernel<<<size.rows, block_size, 0, stream>>>(size.columns, logits, targets, scale,
                                                                      static_cast<Bf16*>(dlogits));
}

}  // namespace gpt::cuda
