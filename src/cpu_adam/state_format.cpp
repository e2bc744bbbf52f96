#include <penstock/cpu_adam/state_format.hpp>

#include "kernels/state_codes.hpp"

#include <optional>

namespace penstock::cpu_adam {

namespace {

/// Bytes of a block of n elements, n ≤ block_elements.
std::optional<std::uint64_t> bytes_of_block(StateFormat format, std::uint64_t n) {
  switch (format) {
    case StateFormat::fp32: return 12 * n;
    case StateFormat::moments: return 8 * n;
    case StateFormat::split: return 10 * n;
    case StateFormat::split_bf16: return 6 * n;
    case StateFormat::split_q8:
      return 4 * n + ceil_divide(n, std::uint64_t{2}) + 2 * ceil_divide(n, std::uint64_t{kernels::q8_run});
  }
  return std::nullopt;
}

}  // namespace

Result<ByteCount> tile_bytes(StateFormat format, ElementCount elements) {
  const auto block = bytes_of_block(format, block_elements.value());
  if (!block) {
    return Error::invalid_argument("tile_bytes")
        .object("format")
        .wanted("fp32, moments, split, split_bf16 or split_q8")
        .got(static_cast<unsigned>(format));
  }
  const std::uint64_t whole = elements.value() / block_elements.value(),
                      rest = elements.value() % block_elements.value();
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(whole, *block, &bytes) ||
      __builtin_add_overflow(bytes, *bytes_of_block(format, rest), &bytes)) {
    return Error::invalid_argument("tile_bytes")
        .object("elements")
        .reason("element count overflows 64 bits of bytes")
        .got(elements);
  }
  return ByteCount(bytes);
}

Result<ByteCount> block_bytes(StateFormat format, ElementCount elements) {
  if (elements > block_elements) {
    return Error::invalid_argument("block_bytes")
        .object("elements")
        .reason("more than a block holds")
        .wanted(block_elements)
        .got(elements);
  }
  return tile_bytes(format, elements);
}

ElementCount default_tile_elements(StateFormat format) {
  const auto block = block_bytes(format, block_elements);
  return block ? block_elements * (3_MiB / *block) : block_elements;
}

Alignment state_alignment(StateFormat format) {
  const bool has_floats =
      format == StateFormat::fp32 || format == StateFormat::moments || format == StateFormat::split;
  return Alignment(has_floats ? sizeof(float) : sizeof(std::uint16_t));
}

}  // namespace penstock::cpu_adam
