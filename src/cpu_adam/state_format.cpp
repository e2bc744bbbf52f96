#include <penstock/cpu_adam/state_format.hpp>

#include "kernels/state_layout.hpp"

namespace penstock::cpu_adam {

Result<ByteCount> tile_bytes(StateFormat format, ElementCount elements) {
  if (!kernels::state_block_bytes(format, 0)) {
    return Error::invalid_argument("tile_bytes")
        .object("format")
        .wanted("fp32, moments, split, split_bf16 or split_q8")
        .got(static_cast<unsigned>(format));
  }
  const auto bytes = kernels::state_tile_bytes(format, elements.value());
  if (!bytes) {
    return Error::invalid_argument("tile_bytes")
        .object("elements")
        .reason("element count overflows 64 bits of bytes")
        .got(elements);
  }
  return ByteCount(*bytes);
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
  return Alignment(kernels::state_alignment_bytes(format));
}

}  // namespace penstock::cpu_adam
