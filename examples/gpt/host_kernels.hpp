#pragma once

#include "gpt/ops.hpp"

#include <cstddef>
#include <cstdint>

/// The loops of HostOps, on plain pointers: fp32, rows of `columns` elements, no aliasing unless noted. The order of
/// operations is deterministic; the instruction set is selected when the program is loaded.
namespace gpt::host {

/// to[i] = the value of the bf16 from[i].
void widen_bf16(const std::uint16_t* from, float* to, std::size_t count) noexcept;
/// to[i] = bf16(from[i]), or bf16(to[i] + from[i]): nearest, ties to even; NaN stays NaN.
void store_bf16(const float* from, std::uint16_t* to, std::size_t count, GradientWrite write) noexcept;
/// The same for fp16.
void widen_fp16(const std::uint16_t* from, float* to, std::size_t count) noexcept;
void store_fp16(const float* from, std::uint16_t* to, std::size_t count, GradientWrite write) noexcept;
void store_fp32(const float* from, float* to, std::size_t count, GradientWrite write) noexcept;

void add(const float* x, float* y, std::size_t count) noexcept;
/// Rows of y begin `stride` elements apart; so do those of x.
void add_bias(RowsSize size, std::uint32_t stride, const float* b, float* y) noexcept;
/// sums[c] = Σ_row x[row, c].
void column_sums(RowsSize size, std::uint32_t stride, const float* x, float* sums) noexcept;

void layer_norm(RowsSize size, const float* x, const float* gain, const float* b, float* y,
                float* statistics) noexcept;
/// dgain and db are overwritten; dx may be dy.
void layer_norm_backward(RowsSize size, const float* x, const float* gain, const float* statistics,
                         const float* dy, float* dx, float* dgain, float* db) noexcept;

/// A dense tile of attention's scores; rows are queries, columns keys. In a tile on the diagonal, row r has r + 1
/// visible columns, else all; what is computed for the others is zero.
struct ScoreTile {
  std::uint32_t rows, columns;
  bool diagonal;
};
/// What the forward keeps of a row of scores: the largest and Σ exp(scale · (score − largest)) so far, and a row of
/// output that is not divided by the sum yet.
struct SoftmaxState {
  float *largest, *sums, *output;
  std::uint32_t output_width, output_stride;
};
/// In place: scores become exp(scale · (score − largest)). The state takes them in; its output is scaled to the new
/// largest, and the caller adds the product of the scores and the values.
void online_softmax(ScoreTile tile, float scale, float* scores, const SoftmaxState& state) noexcept;
/// In place: a score becomes exp(scale · score − log_sums[row]).
void causal_softmax(ScoreTile tile, float scale, const float* log_sums, float* scores) noexcept;
/// In place: dp becomes scale · p · (dp − projections[row]).
void causal_softmax_backward(ScoreTile tile, float scale, const float* p, const float* projections,
                             float* dp) noexcept;
/// products[row] = Σ_c x[row, c] · y[row, c], of rows that begin `stride` elements apart.
void row_products(RowsSize size, std::uint32_t stride, const float* x, const float* y,
                  float* products) noexcept;

void gelu(const float* x, float* y, std::size_t count) noexcept;
void gelu_backward(const float* x, const float* dy, float* dx, std::size_t count) noexcept;

void cross_entropy(RowsSize size, const float* logits, const std::uint8_t* targets, float* losses) noexcept;
void cross_entropy_backward(RowsSize size, const float* logits, const std::uint8_t* targets, float scale,
                            float* dlogits) noexcept;

/// The vectorised exp(x), exported for tests: accurate to 2 ULPs for x in [-87, 88], clamped outside.
void exponentials(const float* x, float* y, std::size_t count) noexcept;

}  // namespace gpt::host
