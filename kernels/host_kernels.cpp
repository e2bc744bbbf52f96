#include "kernels/host_kernels.hpp"

#include "kernels/element.hpp"
#include "kernels/floating_point_mode.hpp"
#include "kernels/operands.hpp"

#include <penstock/base/compute.hpp>

#include <algorithm>
#include <cstring>

namespace penstock::kernels {

namespace {

/// Calls `body` with a pointer to the elements, in the type that the dtype names.
template <class Body>
void with_elements(ConstElements x, Body&& body) {
  switch (x.dtype) {
    case DType::fp32: return body(reinterpret_cast<const float*>(x.data));
    case DType::bf16: return body(reinterpret_cast<const Bf16*>(x.data));
    case DType::fp16: return body(reinterpret_cast<const Fp16*>(x.data));
  }
}
template <class Body>
void with_elements(Elements x, Body&& body) {
  switch (x.dtype) {
    case DType::fp32: return body(reinterpret_cast<float*>(x.data));
    case DType::bf16: return body(reinterpret_cast<Bf16*>(x.data));
    case DType::fp16: return body(reinterpret_cast<Fp16*>(x.data));
  }
}

// Separate functions with restrict parameters: the compiler vectorises them without overlap checks.
template <class From, class To>
void cast_loop(const From* __restrict from, To* __restrict to, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) to[i] = narrow<To>(widen(from[i]));
}
template <class T>
void scale_loop(T* x, float factor, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) x[i] = narrow<T>(widen(x[i]) * factor);
}
template <class X, class Sum>
void accumulate_loop(const X* __restrict x, Sum* __restrict sum, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) sum[i] = narrow<Sum>(widen(sum[i]) + widen(x[i]));
}
template <class T>
double square_sum_of_block(const T* x, std::uint64_t count) {
  constexpr std::uint64_t lane_count = 16;
  double lanes[lane_count] = {};
  const std::uint64_t whole = count / lane_count * lane_count;
  for (std::uint64_t i = 0; i < whole; i += lane_count) {
    for (std::uint64_t lane = 0; lane < lane_count; ++lane) {
      const double value = widen(x[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (std::uint64_t i = whole; i < count; ++i) {
    const double value = widen(x[i]);
    lanes[i - whole] += value * value;
  }
  for (std::uint64_t half = lane_count / 2; half > 0; half /= 2) {
    for (std::uint64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

}  // namespace

void cast_elements(ConstElements from, Elements to, std::uint64_t count) noexcept {
  if (count == 0) return;
  if (from.dtype == to.dtype) {
    std::memcpy(to.data, from.data, count * size_of(to.dtype).value());
    return;
  }
  const DefaultFloatingPointMode mode;
  with_elements(from, [&](const auto* source) {
    with_elements(to, [&](auto* destination) { cast_loop(source, destination, count); });
  });
}

void scale_elements(Elements x, float factor, std::uint64_t count) noexcept {
  const DefaultFloatingPointMode mode;
  with_elements(x, [&](auto* values) { scale_loop(values, factor, count); });
}

void accumulate_elements(ConstElements x, Elements sum, std::uint64_t count) noexcept {
  const DefaultFloatingPointMode mode;
  with_elements(x, [&](const auto* values) {
    with_elements(sum, [&](auto* sums) { accumulate_loop(values, sums, count); });
  });
}

void mean_elements(std::span<const std::byte* const> x, DType dtype, Elements out,
                   std::uint64_t count) noexcept {
  // Small enough for L1, and read whole before `out` is written: `out` may be one of the inputs.
  constexpr std::uint64_t chunk = 1024;
  float sums[chunk];

  const float factor = mean_factor(x.size());
  const DefaultFloatingPointMode mode;
  for (std::uint64_t first = 0; first < count; first += chunk) {
    const std::uint64_t length = std::min(chunk, count - first);
    with_elements(ConstElements{x[0], dtype},
                  [&](const auto* values) { cast_loop(values + first, sums, length); });
    for (const std::byte* input : x.subspan(1)) {
      with_elements(ConstElements{input, dtype},
                    [&](const auto* values) { accumulate_loop(values + first, sums, length); });
    }
    scale_loop(sums, factor, length);
    with_elements(out, [&](auto* values) { cast_loop(sums, values + first, length); });
  }
}

void square_sums_of_elements(ConstElements x, std::uint64_t count, double* partials) noexcept {
  constexpr std::uint64_t block = Compute::square_sum_block;
  const DefaultFloatingPointMode mode;
  with_elements(x, [&](const auto* values) {
    for (std::uint64_t first = 0; first < count; first += block) {
      partials[first / block] = square_sum_of_block(values + first, std::min(block, count - first));
    }
  });
}

}  // namespace penstock::kernels
