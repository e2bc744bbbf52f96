#include "gpt/host_attention.hpp"

#include "gpt/host_kernels.hpp"
#include "gpt/host_matmul.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace gpt::host {

namespace {

constexpr std::uint32_t tile = attention_tile;
using Scores = std::array<float, std::size_t{tile} * tile>;

/// One head of one sequence inside the attention's buffers.
struct Head {
  Head(const AttentionSize& size, std::uint32_t sequence, std::uint32_t head)
      : context(size.context),
        width(size.width / size.heads),
        stride(size.width),
        qkv_stride(3 * size.width) {
    const std::size_t first_row = std::size_t{sequence} * context;
    query = first_row * qkv_stride + std::size_t{head} * width;
    key = query + size.width;
    value = key + size.width;
    output = first_row * stride + std::size_t{head} * width;
    statistics = (std::size_t{sequence} * size.heads + head) * context;
    scale = 1.0f / std::sqrt(static_cast<float>(width));
  }

  /// The rows of a tile in a matrix of qkv that begins at element `matrix`.
  template <class Float>
  [[nodiscard]] Matrix<Float> in_qkv(Float* qkv, std::size_t matrix, std::uint32_t first) const {
    return {qkv + matrix + std::size_t{first} * qkv_stride, qkv_stride};
  }
  template <class Float>
  [[nodiscard]] Matrix<Float> in_output(Float* y, std::uint32_t first) const {
    return {y + output + std::size_t{first} * stride, stride};
  }
  /// Rows of the tile that begins with row `first`.
  [[nodiscard]] std::uint32_t rows(std::uint32_t first) const { return std::min(tile, context - first); }

  std::uint32_t context, width, stride, qkv_stride;
  std::size_t query, key, value, output, statistics;  // first element of each
  float scale;
};

Matrix<const float> transposed(Matrix<const float> matrix) {
  matrix.transpose = Transpose::yes;
  return matrix;
}

template <class Operation>
void for_each_head(const AttentionSize& size, Operation operation) {
  for (std::uint32_t sequence = 0; sequence < size.sequences; ++sequence) {
    for (std::uint32_t head = 0; head < size.heads; ++head) operation(Head(size, sequence, head));
  }
}

/// Forward of the queries of one tile: their keys one tile after the other, with a running maximum and sum (Dao 2023,
/// algorithm 1).
void attend(const Head& head, std::uint32_t first, const float* qkv, float* log_sums, float* y) {
  const std::uint32_t rows = head.rows(first);
  const Matrix<float> out = head.in_output(y, first);
  Scores scores;
  std::array<float, tile> largest, sums;
  largest.fill(-std::numeric_limits<float>::infinity());
  sums.fill(0);
  for (std::uint32_t row = 0; row < rows; ++row) {
    std::fill_n(out.data + std::size_t{row} * out.stride, head.width, 0.0f);
  }
  for (std::uint32_t first_key = 0; first_key <= first; first_key += tile) {
    const std::uint32_t keys = head.rows(first_key);
    product({rows, keys, head.width}, head.in_qkv(qkv, head.query, first),
            transposed(head.in_qkv(qkv, head.key, first_key)), {scores.data(), keys});
    online_softmax({rows, keys, first_key == first}, head.scale, scores.data(),
                   {largest.data(), sums.data(), out.data, head.width, out.stride});
    product({rows, head.width, keys}, {scores.data(), keys}, head.in_qkv(qkv, head.value, first_key), out,
            /*add=*/true);
  }
  for (std::uint32_t row = 0; row < rows; ++row) {
    float* const values = out.data + std::size_t{row} * out.stride;
    for (std::uint32_t c = 0; c < head.width; ++c) values[c] /= sums[row];
    log_sums[head.statistics + first + row] = head.scale * largest[row] + std::log(sums[row]);
  }
}

/// Backward of one head: each tile of keys with all queries that attend to it (Dao 2023, algorithm 2). The first
/// product into a gradient overwrites it.
void attend_backward(const Head& head, const AttentionGradients& t) {
  Scores p, ds;
  for (std::uint32_t first_key = 0; first_key < head.context; first_key += tile) {
    const std::uint32_t keys = head.rows(first_key);
    const auto key = head.in_qkv(t.qkv, head.key, first_key),
               value = head.in_qkv(t.qkv, head.value, first_key);
    for (std::uint32_t first = first_key; first < head.context; first += tile) {
      const std::uint32_t rows = head.rows(first);
      const bool diagonal = first == first_key;
      const auto query = head.in_qkv(t.qkv, head.query, first);
      const auto dy = head.in_output(t.dy, first);
      const std::size_t statistics = head.statistics + first;

      product({rows, keys, head.width}, query, transposed(key), {p.data(), keys});
      causal_softmax({rows, keys, diagonal}, head.scale, t.log_sums + statistics, p.data());
      product({keys, head.width, rows}, transposed({p.data(), keys}), dy,
              head.in_qkv(t.dqkv, head.value, first_key), !diagonal);
      product({rows, keys, head.width}, dy, transposed(value), {ds.data(), keys});
      causal_softmax_backward({rows, keys, diagonal}, head.scale, p.data(), t.projections + statistics,
                              ds.data());
      product({rows, head.width, keys}, {ds.data(), keys}, key, head.in_qkv(t.dqkv, head.query, first),
              first_key > 0);
      product({keys, head.width, rows}, transposed({ds.data(), keys}), query,
              head.in_qkv(t.dqkv, head.key, first_key), !diagonal);
    }
  }
}

}  // namespace

void attention(AttentionSize size, const float* qkv, float* log_sums, float* y) noexcept {
  for_each_head(size, [&](const Head& head) {
    for (std::uint32_t first = 0; first < head.context; first += tile) attend(head, first, qkv, log_sums, y);
  });
}

void attention_backward(AttentionSize size, const AttentionGradients& t) noexcept {
  for_each_head(size, [&](const Head& head) {
    row_products({head.context, head.width}, head.stride, t.dy + head.output, t.y + head.output,
                 t.projections + head.statistics);
    attend_backward(head, t);
  });
}

}  // namespace gpt::host
