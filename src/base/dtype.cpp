#include <penstock/base/dtype.hpp>

#include <limits>

namespace penstock {

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::fp32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::fp16: return "fp16";
  }
  return "unknown";
}

Result<ByteCount> bytes_of(ElementCount elements, DType dtype) {
  const std::uint64_t size = size_of(dtype).value();
  if (elements.value() > std::numeric_limits<std::uint64_t>::max() / size) {
    return Error::invalid_argument("bytes_of")
        .reason("element count overflows 64 bits of bytes")
        .got(elements);
  }
  return ByteCount(elements.value() * size);
}

Result<ElementCount> elements_of(ByteCount bytes, DType dtype) {
  const std::uint64_t size = size_of(dtype).value();
  if (bytes.value() % size != 0) {
    return Error::invalid_argument("elements_of")
        .reason("not a whole number of elements")
        .wanted("a multiple of " + std::to_string(size) + " B")
        .got(bytes);
  }
  return ElementCount(bytes.value() / size);
}

}  // namespace penstock
