#include <penstock/cpu_adam/state_format.hpp>

#include <limits>
#include <string>

namespace penstock {

std::string_view to_string(StateFormat format) {
  switch (format) {
    case StateFormat::fp32: return "fp32";
    case StateFormat::split: return "split";
    case StateFormat::split_bf16: return "split_bf16";
    case StateFormat::split_q8: return "split_q8";
  }
  return "unknown";
}

Result<ByteCount> tile_bytes(StateFormat format, ElementCount elements) {
  constexpr std::uint64_t state_bytes = 3 * sizeof(float);
  if (format != StateFormat::fp32) {
    return Error::unsupported("tile_bytes")
        .object("format")
        .reason("this state format is not implemented yet")
        .wanted("fp32")
        .got(std::string(to_string(format)));
  }
  if (elements.value() > std::numeric_limits<std::uint64_t>::max() / state_bytes) {
    return Error::invalid_argument("tile_bytes")
        .object("elements")
        .reason("element count overflows 64 bits of bytes")
        .got(elements);
  }
  return ByteCount(elements.value() * state_bytes);
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

}  // namespace penstock
