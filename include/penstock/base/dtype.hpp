#pragma once

#include <penstock/base/result.hpp>

#include <cstdint>
#include <string_view>

namespace penstock {

/// Element types, a closed set. The numbers are written to disk and are never reused.
enum class DType : std::uint8_t { fp32 = 0, bf16 = 1, fp16 = 2 };

[[nodiscard]] constexpr ByteCount size_of(DType dtype) {
  return ByteCount(dtype == DType::fp32 ? 4 : 2);
}
[[nodiscard]] std::string_view to_string(DType dtype);

/// elements × size_of(dtype). All conversions of elements to bytes use this function.
///
/// Errors: invalid_argument, when the product does not fit 64 bits.
[[nodiscard]] Result<ByteCount> bytes_of(ElementCount elements, DType dtype);

/// bytes / size_of(dtype).
///
/// Errors: invalid_argument, when `bytes` is not a whole number of elements.
[[nodiscard]] Result<ElementCount> elements_of(ByteCount bytes, DType dtype);

}  // namespace penstock
