#include "gpt/host_kernels.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

// Each function is compiled for three instruction sets. Not with sanitizers: they cannot run the ifunc resolvers that
// select one.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define GPT_MULTIVERSION __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define GPT_MULTIVERSION
#endif
// Functions without their own versions must be inlined to be vectorised for the caller's instruction set.
#define GPT_INLINE [[gnu::always_inline]] inline

namespace gpt::host {

namespace {

constexpr float layer_norm_epsilon = 1e-5f;
constexpr float gelu_slope = 0.7978845608028654f;  // sqrt(2 / π)
constexpr float gelu_cubic = 0.044715f;

// x = n ln 2 + r with |r| <= ln 2 / 2. exp(r) is its Taylor polynomial, whose remainder r⁸/8! is below 6e-9; 2ⁿ is
// multiplied in through the exponent field. Branch-free, so that loops over it vectorise.
GPT_INLINE float exponential(float x) {
  constexpr float ln2_high = 0x1.62e4p-1f;  // few enough bits that n · ln2_high is exact
  constexpr float ln2_low = 0x1.7f7d1cp-20f;
  constexpr float round_to_integer = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  x = std::min(std::max(x, -87.0f), 88.0f);
  const float shifted = x * 0x1.715476p+0f + round_to_integer;
  const float n = shifted - round_to_integer;
  const float r = (x - n * ln2_high) - n * ln2_low;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(shifted) + 127) << 23;
  return p * std::bit_cast<float>(exponent);
}

GPT_INLINE float widen_bf16(std::uint16_t x) {
  return std::bit_cast<float>(std::uint32_t{x} << 16);
}

GPT_INLINE std::uint16_t round_to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const std::uint32_t quiet_nan = bits | 0x400000;
  return static_cast<std::uint16_t>(((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded) >> 16);
}

GPT_INLINE float widen_fp16(std::uint16_t x) {
  const std::uint32_t shifted = std::uint32_t{x & 0x7fffu} << 13;
  // Exact, also for subnormal numbers. The largest exponent is that of infinity and NaN.
  const auto finite = std::bit_cast<std::uint32_t>(std::bit_cast<float>(shifted) * 0x1p112f);
  const std::uint32_t magnitude = shifted < 0x0f800000 ? finite : shifted | 0x7f800000;
  return std::bit_cast<float>(magnitude | std::uint32_t{x & 0x8000u} << 16);
}

GPT_INLINE std::uint16_t round_to_fp16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  const std::uint32_t normal = ((magnitude + 0xfff + ((magnitude >> 13) & 1)) >> 13) - (112 << 10);
  // Beside 0.5 the distance of fp32 numbers is that of fp16's subnormal numbers.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  std::uint32_t rounded = magnitude < 0x38800000 ? subnormal : normal;  // 2^-14
  rounded = magnitude < 0x477ff000 ? rounded : 0x7c00;                  // 65520
  rounded = magnitude > 0x7f800000 ? 0x7e00 : rounded;
  return static_cast<std::uint16_t>(rounded | (bits >> 16 & 0x8000));
}

GPT_INLINE float largest(const float* x, std::size_t count) {
  float result = x[0];
#pragma omp simd reduction(max : result)
  for (std::size_t c = 0; c < count; ++c) result = std::max(result, x[c]);
  return result;
}

// y = exp(factor · x − shift); returns the sum of y. y may be x.
GPT_INLINE float exponentials_sum(const float* x, float factor, float shift, float* y, std::size_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::size_t c = 0; c < count; ++c) {
    y[c] = exponential(factor * x[c] - shift);
    sum += y[c];
  }
  return sum;
}

}  // namespace

GPT_MULTIVERSION
void widen_bf16(const std::uint16_t* from, float* to, std::size_t count) noexcept {
#pragma omp simd
  for (std::size_t i = 0; i < count; ++i) to[i] = widen_bf16(from[i]);
}

GPT_MULTIVERSION
void store_bf16(const float* from, std::uint16_t* to, std::size_t count, GradientWrite write) noexcept {
  if (write == GradientWrite::accumulate) {
#pragma omp simd
    for (std::size_t i = 0; i < count; ++i) to[i] = round_to_bf16(widen_bf16(to[i]) + from[i]);
  } else {
#pragma omp simd
    for (std::size_t i = 0; i < count; ++i) to[i] = round_to_bf16(from[i]);
  }
}

GPT_MULTIVERSION
void widen_fp16(const std::uint16_t* from, float* to, std::size_t count) noexcept {
#pragma omp simd
  for (std::size_t i = 0; i < count; ++i) to[i] = widen_fp16(from[i]);
}

GPT_MULTIVERSION
void store_fp16(const float* from, std::uint16_t* to, std::size_t count, GradientWrite write) noexcept {
  if (write == GradientWrite::accumulate) {
#pragma omp simd
    for (std::size_t i = 0; i < count; ++i) to[i] = round_to_fp16(widen_fp16(to[i]) + from[i]);
  } else {
#pragma omp simd
    for (std::size_t i = 0; i < count; ++i) to[i] = round_to_fp16(from[i]);
  }
}

void store_fp32(const float* from, float* to, std::size_t count, GradientWrite write) noexcept {
  if (write == GradientWrite::accumulate) return add(from, to, count);
  std::copy_n(from, count, to);
}

GPT_MULTIVERSION
void add(const float* x, float* y, std::size_t count) noexcept {
#pragma omp simd
  for (std::size_t i = 0; i < count; ++i) y[i] += x[i];
}

void add_bias(RowsSize size, std::uint32_t stride, const float* b, float* y) noexcept {
  for (std::size_t row = 0; row < size.rows; ++row) add(b, y + row * stride, size.columns);
}

void column_sums(RowsSize size, std::uint32_t stride, const float* x, float* sums) noexcept {
  std::fill_n(sums, size.columns, 0.0f);
  for (std::size_t row = 0; row < size.rows; ++row) add(x + row * stride, sums, size.columns);
}

GPT_MULTIVERSION
void layer_norm(RowsSize size, const float* x, const float* gain, const float* b, float* y,
                float* statistics) noexcept {
  const std::size_t columns = size.columns;
  for (std::size_t row = 0; row < size.rows; ++row, x += columns, y += columns) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::size_t c = 0; c < columns; ++c) sum += x[c];
    const float mean = sum / static_cast<float>(columns);
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (std::size_t c = 0; c < columns; ++c) squares += (x[c] - mean) * (x[c] - mean);
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(columns) + layer_norm_epsilon);
#pragma omp simd
    for (std::size_t c = 0; c < columns; ++c) y[c] = (x[c] - mean) * rstd * gain[c] + b[c];
    statistics[2 * row] = mean;
    statistics[2 * row + 1] = rstd;
  }
}

GPT_MULTIVERSION
void layer_norm_backward(RowsSize size, const float* x, const float* gain, const float* statistics,
                         const float* dy, float* dx, float* dgain, float* db) noexcept {
  const std::size_t columns = size.columns;
  std::fill_n(dgain, columns, 0.0f);
  std::fill_n(db, columns, 0.0f);
  for (std::size_t row = 0; row < size.rows; ++row, x += columns, dy += columns, dx += columns) {
    const float mean = statistics[2 * row], rstd = statistics[2 * row + 1];
    float sum = 0,
          projected = 0;  // sums of the normalised row's gradient, and of its product with the normalised row
#pragma omp simd reduction(+ : sum, projected)
    for (std::size_t c = 0; c < columns; ++c) {
      const float normalised = (x[c] - mean) * rstd;
      sum += dy[c] * gain[c];
      projected += dy[c] * gain[c] * normalised;
    }
    sum /= static_cast<float>(columns);
    projected /= static_cast<float>(columns);
#pragma omp simd
    for (std::size_t c = 0; c < columns; ++c) {
      const float normalised = (x[c] - mean) * rstd;
      const float gradient = dy[c];
      dgain[c] += gradient * normalised;
      db[c] += gradient;
      dx[c] = (gradient * gain[c] - sum - normalised * projected) * rstd;
    }
  }
}

GPT_MULTIVERSION
void online_softmax(ScoreTile tile, float scale, float* scores, const SoftmaxState& state) noexcept {
  float* output = state.output;
  for (std::size_t row = 0; row < tile.rows; ++row, scores += tile.columns, output += state.output_stride) {
    const std::size_t visible = tile.diagonal ? row + 1 : tile.columns;
    const float before = state.largest[row], now = std::max(before, largest(scores, visible));
    const float correction = exponential(scale * (before - now));
    const float sum = exponentials_sum(scores, scale, scale * now, scores, visible);
    std::fill(scores + visible, scores + tile.columns, 0.0f);
    state.largest[row] = now;
    state.sums[row] = state.sums[row] * correction + sum;
#pragma omp simd
    for (std::size_t c = 0; c < state.output_width; ++c) output[c] *= correction;
  }
}

GPT_MULTIVERSION
void causal_softmax(ScoreTile tile, float scale, const float* log_sums, float* scores) noexcept {
  for (std::size_t row = 0; row < tile.rows; ++row, scores += tile.columns) {
    const std::size_t visible = tile.diagonal ? row + 1 : tile.columns;
#pragma omp simd
    for (std::size_t c = 0; c < visible; ++c) scores[c] = exponential(scale * scores[c] - log_sums[row]);
    std::fill(scores + visible, scores + tile.columns, 0.0f);
  }
}

GPT_MULTIVERSION
void causal_softmax_backward(ScoreTile tile, float scale, const float* p, const float* projections,
                             float* dp) noexcept {
  // Where p is zero, so is the result.
  for (std::size_t row = 0; row < tile.rows; ++row, p += tile.columns, dp += tile.columns) {
#pragma omp simd
    for (std::size_t c = 0; c < tile.columns; ++c) dp[c] = scale * p[c] * (dp[c] - projections[row]);
  }
}

GPT_MULTIVERSION
void row_products(RowsSize size, std::uint32_t stride, const float* x, const float* y,
                  float* products) noexcept {
  for (std::size_t row = 0; row < size.rows; ++row, x += stride, y += stride) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::size_t c = 0; c < size.columns; ++c) sum += x[c] * y[c];
    products[row] = sum;
  }
}

GPT_MULTIVERSION
void gelu(const float* x, float* y, std::size_t count) noexcept {
#pragma omp simd
  for (std::size_t i = 0; i < count; ++i) {
    const float u = gelu_slope * (x[i] + gelu_cubic * x[i] * x[i] * x[i]);
    y[i] = x[i] / (1.0f + exponential(-2.0f * u));
  }
}

GPT_MULTIVERSION
void gelu_backward(const float* x, const float* dy, float* dx, std::size_t count) noexcept {
#pragma omp simd
  for (std::size_t i = 0; i < count; ++i) {
    const float u = gelu_slope * (x[i] + gelu_cubic * x[i] * x[i] * x[i]);
    const float du = gelu_slope * (1.0f + 3.0f * gelu_cubic * x[i] * x[i]);
    const float gate = 1.0f / (1.0f + exponential(-2.0f * u));
    dx[i] = dy[i] * (gate + x[i] * gate * (1.0f - gate) * 2.0f * du);
  }
}

GPT_MULTIVERSION
void cross_entropy(RowsSize size, const float* logits, const std::uint8_t* targets, float* losses) noexcept {
  for (std::size_t row = 0; row < size.rows; ++row, logits += size.columns) {
    const float shift = largest(logits, size.columns);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::size_t c = 0; c < size.columns; ++c) sum += exponential(logits[c] - shift);
    losses[row] = std::log(sum) + shift - logits[targets[row]];
  }
}

GPT_MULTIVERSION
void cross_entropy_backward(RowsSize size, const float* logits, const std::uint8_t* targets, float scale,
                            float* dlogits) noexcept {
  const std::size_t columns = size.columns;
  for (std::size_t row = 0; row < size.rows; ++row, logits += columns, dlogits += columns) {
    const float sum = exponentials_sum(logits, 1.0f, largest(logits, columns), dlogits, columns);
    const float factor = scale / sum;
#pragma omp simd
    for (std::size_t c = 0; c < columns; ++c) dlogits[c] *= factor;
    dlogits[targets[row]] -= scale;
  }
}

GPT_MULTIVERSION
void exponentials(const float* x, float* y, std::size_t count) noexcept {
#pragma omp simd
  for (std::size_t i = 0; i < count; ++i) y[i] = exponential(x[i]);
}

}  // namespace gpt::host
