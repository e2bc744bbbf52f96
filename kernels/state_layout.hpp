#pragma once

#include "kernels/state_codes.hpp"

#include <penstock/base/dtype.hpp>
#include <penstock/base/units.hpp>
#include <penstock/kernels/variants.hpp>

#include <cstdint>
#include <optional>

namespace penstock::kernels {

inline constexpr unsigned adam_moments = 2;

/// Bytes of a block of n elements, n ≤ adam_block_elements, with `moments` moments; nothing for an unknown format, for
/// a split format with another number of moments than Adam's, and for one of moments alone with none. The layouts are
/// documented in cpu_adam/state_format.hpp.
[[nodiscard]] constexpr std::optional<std::uint64_t> state_block_bytes(StateFormat format, std::uint64_t n,
                                                                       unsigned moments = adam_moments) {
  if (moments != adam_moments && format != StateFormat::fp32 && format != StateFormat::moments)
    return std::nullopt;
  if (moments == 0 && format == StateFormat::moments) return std::nullopt;
  switch (format) {
    case StateFormat::fp32: return 4 * (1 + moments) * n;
    case StateFormat::moments: return 4 * moments * n;
    case StateFormat::moments_bf16: return 4 * n;
    case StateFormat::split: return 10 * n;
    case StateFormat::split_bf16: return 6 * n;
    case StateFormat::split_q8: return 4 * n + (n + 1) / 2 + 2 * ((n + q8_run - 1) / q8_run);
  }
  return std::nullopt;
}

/// Bytes of a tile; nothing for an unknown format or if they do not fit 64 bits.
[[nodiscard]] constexpr std::optional<std::uint64_t> state_tile_bytes(StateFormat format, std::uint64_t n,
                                                                      unsigned moments = adam_moments) {
  const std::uint64_t rest = n % adam_block_elements;
  const auto block = state_block_bytes(format, adam_block_elements, moments),
             last = state_block_bytes(format, rest, moments);
  std::uint64_t bytes = 0;
  if (!block || __builtin_mul_overflow(n / adam_block_elements, *block, &bytes) ||
      __builtin_add_overflow(bytes, *last, &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

/// Whether parameters of a tile in this format can be of this dtype.
[[nodiscard]] constexpr bool takes_parameter(StateFormat format, DType dtype) {
  return format == StateFormat::fp32 || format == StateFormat::moments || dtype == DType::bf16;
}

/// Whether the format rounds stochastically, so that the number of the step changes what a step stores.
[[nodiscard]] constexpr bool rounds_stochastically(StateFormat format, DType parameter) {
  switch (format) {
    case StateFormat::fp32:
    case StateFormat::split: return false;
    case StateFormat::moments: return parameter != DType::fp32;
    default: return true;
  }
}

/// The alignment that the address of a tile must have: that of its widest number.
[[nodiscard]] constexpr std::uint64_t state_alignment_bytes(StateFormat format) {
  const bool has_floats =
      format == StateFormat::fp32 || format == StateFormat::moments || format == StateFormat::split;
  return has_floats ? sizeof(float) : sizeof(U16);
}

}  // namespace penstock::kernels
