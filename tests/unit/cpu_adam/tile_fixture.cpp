#include "tile_fixture.hpp"

#include <bit>
#include <cstring>

namespace penstock::test {

using namespace cpu_adam;

namespace {

struct Layout {
  int mantissa_bits, exponent_min, exponent_max;
};
constexpr Layout bf16_layout{7, -126, 127};
constexpr Layout fp16_layout{10, -14, 15};
const Layout& layout_of(DType dtype) {
  return dtype == DType::bf16 ? bf16_layout : fp16_layout;
}

}  // namespace

double spacing_of(DType dtype, double value) {
  const Layout& layout = layout_of(dtype);
  const int exponent = value == 0 ? layout.exponent_min : std::max(std::ilogb(value), layout.exponent_min);
  return std::ldexp(1.0, exponent - layout.mantissa_bits);
}

float rounded_to(DType dtype, double value) {
  if (dtype == DType::fp32 || !std::isfinite(value) || value == 0.0) return static_cast<float>(value);
  const Layout& layout = layout_of(dtype);
  const double unit = spacing_of(dtype, value);
  const double rounded = std::nearbyint(value / unit) * unit;  // the default mode: ties to even
  if (std::abs(rounded) >= std::ldexp(1.0, layout.exponent_max + 1)) {
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(value));
  }
  return static_cast<float>(rounded);
}

void put(DType dtype, std::byte* at, float value) {
  if (dtype == DType::fp32) {
    std::memcpy(at, &value, sizeof(value));
    return;
  }
  std::uint16_t bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  if (dtype == DType::fp16) {
    const std::uint16_t sign = bits & 0x8000u;
    const double magnitude = std::abs(static_cast<double>(value));
    std::uint16_t rest = 0;
    if (std::isnan(value)) {
      rest = 0x7e00u;
    } else if (std::isinf(value)) {
      rest = 0x7c00u;
    } else if (magnitude < 0x1p-14) {
      rest = static_cast<std::uint16_t>(magnitude * 0x1p24);
    } else {
      const int exponent = std::ilogb(magnitude);
      rest = static_cast<std::uint16_t>((exponent + 14) * 1024 + std::ldexp(magnitude, 10 - exponent));
    }
    bits = sign | rest;
  }
  std::memcpy(at, &bits, sizeof(bits));
}

float get(DType dtype, const std::byte* at) {
  if (dtype == DType::fp32) {
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  if (dtype == DType::bf16) return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  const float sign = bits & 0x8000u ? -1.0f : 1.0f;
  if (exponent == 31) {
    return fraction == 0 ? sign * std::numeric_limits<float>::infinity()
                         : std::numeric_limits<float>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
}

}  // namespace penstock::test
