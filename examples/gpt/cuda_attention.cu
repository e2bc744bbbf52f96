// Attention without scores in global memory (Dao 2023, FlashAttention-2), without atomics: one kernel computes the
// gradients of keys and values, another those of queries, and each computes the probabilities again.
#include "gpt/cuda_attention.hpp"
#include "gpt/cuda_matrix_tiles.cuh"

#include <cmath>
#include <cstddef>

namespace gpt::cuda {

namespace {

using Bf16 = __nv_bfloat16;

constexpr unsigned threads = 128;
constexpr unsigned tile_rows = threads / warp_size * 16;   // of a block: 16 of each warp
constexpr unsigned forward_step = 64, backward_step = 32;  // rows of a tile in shared memory
constexpr float log2_e = 1.4426950408889634f;

/// One head of one sequence. The rows of its matrices are tokens.
struct Head {
  unsigned context, width, model_width;
  std::size_t first_row, first_column, statistics;
  float scale;

  __device__ Head(AttentionSize size, unsigned number)
      : context(size.context), width(size.width / size.heads), model_width(size.width) {
    const unsigned sequence = number / size.heads, head = number % size.heads;
    first_row = std::size_t{sequence} * context;
    first_column = std::size_t{head} * width;
    statistics = std::size_t{number} * context;
    scale = 1.0f / sqrtf(static_cast<float>(width));
  }

  /// Query, key or value: part 0, 1 or 2 of a row of qkv.
  __device__ std::size_t qkv(unsigned part) const {
    return first_row * 3 * model_width + std::size_t{part} * model_width + first_column;
  }
  __device__ MatrixView in_qkv(const Bf16* data, unsigned part) const {
    return {data + qkv(part), std::size_t{3} * model_width, context, width};
  }
  __device__ MatrixView in_output(const Bf16* data) const {
    return {data + first_row * model_width + first_column, model_width, context, width};
  }
};

/// The 16 rows of this warp in the block's tile.
struct Rows {
  unsigned first, context;

  __device__ Rows(unsigned tile, unsigned length)
      : first(tile * tile_rows + threadIdx.x / warp_size * 16), context(length) {}
  __device__ bool none() const { return first >= context; }
  __device__ unsigned of(unsigned i) const { return first + SumFragment::row(i); }
};

template <unsigned columns>
__device__ void load_left(LeftFragment (&fragments)[columns / 16], const MatrixView& from, unsigned first) {
#pragma unroll
  for (unsigned k = 0; k < columns / 16; ++k) fragments[k] = from.left(first, 16 * k);
}

/// sums[n] = left · the transposed tile.
template <unsigned columns, unsigned step>
__device__ void multiply_transposed(SumFragment (&sums)[step / 8], const LeftFragment (&left)[columns / 16],
                                    const SharedTile<step, columns>& right) {
#pragma unroll
  for (unsigned n = 0; n < step / 8; n += 2) {
    sums[n] = {};
    sums[n + 1] = {};
#pragma unroll
    for (unsigned k = 0; k < columns / 16; ++k) {
      const RightFragments operands = right.transposed(8 * n, 16 * k);
      multiply_add(sums[n], left[k], operands.at[0]);
      multiply_add(sums[n + 1], left[k], operands.at[1]);
    }
  }
}

/// sums[n] += left · the tile.
template <unsigned columns, unsigned step>
__device__ void add_product(SumFragment (&sums)[columns / 8], const SumFragment (&left)[step / 8],
                            const SharedTile<step, columns>& right) {
#pragma unroll
  for (unsigned k = 0; k < step / 16; ++k) {
    const LeftFragment operand = rounded(left[2 * k], left[2 * k + 1]);
#pragma unroll
    for (unsigned n = 0; n < columns / 8; n += 2) {
      const RightFragments operands = right.right(16 * k, 8 * n);
      multiply_add(sums[n], operand, operands.at[0]);
      multiply_add(sums[n + 1], operand, operands.at[1]);
    }
  }
}

/// to[row, column] = factors[half of the rows] · sum, of a matrix whose rows are `stride` elements apart.
template <unsigned columns>
__device__ void store(const SumFragment (&sums)[columns / 8], const Rows& rows, unsigned width,
                      const float (&factors)[2], Bf16* to, std::size_t stride) {
#pragma unroll
  for (unsigned n = 0; n < columns / 8; ++n) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned row = rows.of(2 * half), column = 8 * n + lane_column();
      if (row >= rows.context || column >= width) continue;
      *reinterpret_cast<Pair*>(to + row * stride + column) =
          pair(sums[n].at[2 * half] * factors[half], sums[n].at[2 * half + 1] * factors[half]);
    }
  }
}

/// Joins the values of the four lanes that hold a row.
template <class Operation>
__device__ float join_row(float value, Operation operation) {
  value = operation(value, __shfl_xor_sync(~0u, value, 1));
  return operation(value, __shfl_xor_sync(~0u, value, 2));
}

template <unsigned width>
__global__ void __launch_bounds__(threads)
    attention_kernel(AttentionSize size, unsigned tiles, const Bf16* qkv, float* log_sums, Bf16* y) {
  __shared__ SharedTile<forward_step, width> keys, values;
  const Head head(size, blockIdx.x / tiles);
  const unsigned tile = tiles - 1 - blockIdx.x % tiles;  // those with the most keys first
  const Rows queries(tile, head.context);
  const float factor = head.scale * log2_e;
  const auto greater = [](float a, float b) { return fmaxf(a, b); };
  const auto plus = [](float a, float b) { return a + b; };

  LeftFragment query[width / 16];
  load_left<width>(query, head.in_qkv(qkv, 0), queries.first);
  SumFragment output[width / 8] = {};
  float largest[2] = {-INFINITY, -INFINITY}, sums[2] = {0, 0};  // of two rows; sums of this lane's columns
  for (unsigned first = 0; first < (tile + 1) * tile_rows && first < head.context; first += forward_step) {
    __syncthreads();
    keys.load(head.in_qkv(qkv, 1), first, threads);
    values.load(head.in_qkv(qkv, 2), first, threads);
    __syncthreads();
    if (queries.none()) continue;

    SumFragment scores[forward_step / 8];
    multiply_transposed<width, forward_step>(scores, query, keys);
    float before[2] = {largest[0], largest[1]};
#pragma unroll
    for (unsigned n = 0; n < forward_step / 8; ++n) {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        if (first + 8 * n + SumFragment::column(i) > queries.of(i)) scores[n].at[i] = -INFINITY;
        largest[i / 2] = fmaxf(largest[i / 2], scores[n].at[i]);
      }
    }
    float correction[2];
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      largest[half] = join_row(largest[half], greater);
      correction[half] = exp2f(factor * (before[half] - largest[half]));
      sums[half] *= correction[half];
    }
#pragma unroll
    for (unsigned n = 0; n < forward_step / 8; ++n) {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        scores[n].at[i] = exp2f(factor * (scores[n].at[i] - largest[i / 2]));
        sums[i / 2] += scores[n].at[i];
      }
    }
#pragma unroll
    for (unsigned n = 0; n < width / 8; ++n) {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) output[n].at[i] *= correction[i / 2];
    }
    add_product<width, forward_step>(output, scores, values);
  }
  if (queries.none()) return;
  float inverse[2];
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const float sum = join_row(sums[half], plus);
    inverse[half] = 1.0f / sum;
    const unsigned row = queries.of(2 * half);
    if (row < head.context && lane_column() == 0) {
      log_sums[head.statistics + row] = head.scale * largest[half] + logf(sum);
    }
  }
  store<width>(output, queries, head.width, inverse,
               y + head.first_row * head.model_width + head.first_column, head.model_width);
}

/// One warp for each query of each head: projections = Σ dy · y.
__global__ void attention_projections_kernel(AttentionSize size, const Bf16* y, const Bf16* dy,
                                             float* projections) {
  const std::size_t number = (std::size_t{blockIdx.x} * threads + threadIdx.x) / warp_size;
  if (number >= std::size_t{size.sequences} * size.heads * size.context) return;
  const Head head(size, static_cast<unsigned>(number / size.context));
  const unsigned row = static_cast<unsigned>(number % size.context);
  const std::size_t first = (head.first_row + row) * head.model_width + head.first_column;
  float sum = 0;
  for (unsigned c = threadIdx.x % warp_size; c < head.width; c += warp_size)
    sum += __bfloat162float(dy[first + c]) * __bfloat162float(y[first + c]);
#pragma unroll
  for (unsigned distance = warp_size / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(~0u, sum, distance);
  if (threadIdx.x % warp_size == 0) projections[number] = sum;
}

/// What the backward knows of a score: the statistics of its query, and whether the query sees the key.
struct ScoreOrigin {
  bool visible;
  float log_sum, projection;
};

/// The probabilities p of a tile's scores, and the gradients ds of the scores, of 16 rows: left · the transposed tile
/// are the scores, gradient_left · the transposed gradient_tile the gradients of the probabilities. `origin(i, column)`
/// is that of element i of a fragment.
template <unsigned columns, class Origin>
__device__ void score_gradients(SumFragment (&p)[backward_step / 8], SumFragment (&ds)[backward_step / 8],
                                const LeftFragment (&left)[columns / 16],
                                const SharedTile<backward_step, columns>& tile,
                                const LeftFragment (&gradient_left)[columns / 16],
                                const SharedTile<backward_step, columns>& gradient_tile, float scale,
                                const Origin& origin) {
  multiply_transposed<columns, backward_step>(p, left, tile);
  multiply_transposed<columns, backward_step>(ds, gradient_left, gradient_tile);
#pragma unroll
  for (unsigned n = 0; n < backward_step / 8; ++n) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const ScoreOrigin of = origin(i, 8 * n + SumFragment::column(i));
      const float probability = exp2f(scale * log2_e * p[n].at[i] - log2_e * of.log_sum);
      p[n].at[i] = of.visible ? probability : 0.0f;
      ds[n].at[i] = p[n].at[i] * (ds[n].at[i] - of.projection);
    }
  }
}

/// The tensors of the backward.
struct Gradients {
  const Bf16 *qkv, *dy;
  const float *log_sums, *projections;
  Bf16* dqkv;
};

template <unsigned width>
__global__ void __launch_bounds__(threads)
    attention_keys_backward_kernel(AttentionSize size, unsigned tiles, Gradients t) {
  __shared__ SharedTile<backward_step, width> queries, outputs;
  __shared__ float log_sums[backward_step], projections[backward_step];
  const Head head(size, blockIdx.x / tiles);
  const unsigned tile = blockIdx.x % tiles;
  const Rows keys(tile, head.context);

  LeftFragment key[width / 16], value[width / 16];
  load_left<width>(key, head.in_qkv(t.qkv, 1), keys.first);
  load_left<width>(value, head.in_qkv(t.qkv, 2), keys.first);
  SumFragment dkey[width / 8] = {}, dvalue[width / 8] = {};
  for (unsigned first = tile * tile_rows; first < head.context; first += backward_step) {
    __syncthreads();
    queries.load(head.in_qkv(t.qkv, 0), first, threads);
    outputs.load(head.in_output(t.dy), first, threads);
    if (threadIdx.x < backward_step) {
      const unsigned row = first + threadIdx.x;
      // No key is visible to a query that does not exist.
      log_sums[threadIdx.x] = row < head.context ? t.log_sums[head.statistics + row] : INFINITY;
      projections[threadIdx.x] = row < head.context ? t.projections[head.statistics + row] : 0;
    }
    __syncthreads();
    if (keys.none() || first + backward_step <= keys.first) continue;  // no query sees these keys

    SumFragment p[backward_step / 8], ds[backward_step / 8];
    score_gradients<width>(p, ds, key, queries, value, outputs, head.scale, [&](unsigned i, unsigned column) {
      return ScoreOrigin{keys.of(i) <= first + column, log_sums[column], projections[column]};
    });
    add_product<width, backward_step>(dvalue, p, outputs);
    add_product<width, backward_step>(dkey, ds, queries);
  }
  if (keys.none()) return;
  const float scales[2] = {head.scale, head.scale}, one[2] = {1, 1};
  store<width>(dkey, keys, head.width, scales, t.dqkv + head.qkv(1), std::size_t{3} * head.model_width);
  store<width>(dvalue, keys, head.width, one, t.dqkv + head.qkv(2), std::size_t{3} * head.model_width);
}

template <unsigned width>
__global__ void __launch_bounds__(threads)
    attention_queries_backward_kernel(AttentionSize size, unsigned tiles, Gradients t) {
  __shared__ SharedTile<backward_step, width> keys, values;
  const Head head(size, blockIdx.x / tiles);
  const unsigned tile = tiles - 1 - blockIdx.x % tiles;
  const Rows queries(tile, head.context);

  LeftFragment query[width / 16], output[width / 16];
  load_left<width>(query, head.in_qkv(t.qkv, 0), queries.first);
  load_left<width>(output, head.in_output(t.dy), queries.first);
  float log_sums[2], projections[2];
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned row = queries.of(2 * half);
    log_sums[half] = row < head.context ? t.log_sums[head.statistics + row] : 0;
    projections[half] = row < head.context ? t.projections[head.statistics + row] : 0;
  }
  SumFragment dquery[width / 8] = {};
  for (unsigned first = 0; first < (tile + 1) * tile_rows && first < head.context; first += backward_step) {
    __syncthreads();
    keys.load(head.in_qkv(t.qkv, 1), first, threads);
    values.load(head.in_qkv(t.qkv, 2), first, threads);
    __syncthreads();
    if (queries.none() || first >= queries.first + 16) continue;  // no query sees these keys

    SumFragment p[backward_step / 8], ds[backward_step / 8];
    score_gradients<width>(p, ds, query, keys, output, values, head.scale, [&](unsigned i, unsigned column) {
      return ScoreOrigin{first + column <= queries.of(i), log_sums[i / 2], projections[i / 2]};
    });
    add_product<width, backward_step>(dquery, ds, keys);
  }
  if (queries.none()) return;
  const float scales[2] = {head.scale, head.scale};
  store<width>(dquery, queries, head.width, scales, t.dqkv + head.qkv(0), std::size_t{3} * head.model_width);
}

/// Calls `body` with the smallest compiled width of a head that holds `width` columns.
template <class Body>
void with_head_width(unsigned width, Body body) {
  if (width <= 16) return body(std::integral_constant<unsigned, 16>());
  if (width <= 64) return body(std::integral_constant<unsigned, 64>());
  if (width <= 80) return body(std::integral_constant<unsigned, 80>());
  body(std::integral_constant<unsigned, attention_limits.head_width_max>());
}

unsigned tiles_of(AttentionSize size) {
  return (size.context + tile_rows - 1) / tile_rows;
}

}  // namespace

cudaError_t load_attention_kernels() {
  cudaFuncAttributes attributes{};
  cudaError_t error = cudaFuncGetAttributes(&attributes, attention_projections_kernel);
  for (const unsigned head_width : {16u, 64u, 80u, attention_limits.head_width_max}) {
    with_head_width(head_width, [&](auto width) {
      const auto load = [&](auto* kernel) {
        if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
      };
      load(attention_kernel<width>);
      load(attention_keys_backward_kernel<width>);
      load(attention_queries_backward_kernel<width>);
    });
  }
  return error;
}

void attention(cudaStream_t stream, AttentionSize size, const void* qkv, float* log_sums, void* y) {
  const unsigned tiles = tiles_of(size);
  with_head_width(size.width / size.heads, [&](auto width) {
    attention_kernel<width><<<size.sequences * size.heads * tiles, threads, 0, stream>>>(
        size, tiles, static_cast<const Bf16*>(qkv), log_sums, static_cast<Bf16*>(y));
  });
}

void attention_backward(cudaStream_t stream, AttentionSize size, const AttentionGradients& t) {
  constexpr std::size_t warps = threads / warp_size;
  const std::size_t queries = std::size_t{size.sequences} * size.heads * size.context;
  const Gradients gradients{static_cast<const Bf16*>(t.qkv), static_cast<const Bf16*>(t.dy), t.log_sums,
                            t.projections, static_cast<Bf16*>(t.dqkv)};
  attention_projections_kernel<<<static_cast<unsigned>((queries + warps - 1) / warps), threads, 0, stream>>>(
      size, static_cast<const Bf16*>(t.y), gradients.dy, t.projections);
  const unsigned tiles = tiles_of(size), blocks = size.sequences * size.heads * tiles;
  with_head_width(size.width / size.heads, [&](auto width) {
    attention_keys_backward_kernel<width><<<blocks, threads, 0, stream>>>(size, tiles, gradients);
    attention_queries_backward_kernel<width><<<blocks, threads, 0, stream>>>(size, tiles, gradients);
  });
}

}  // namespace gpt::cuda
