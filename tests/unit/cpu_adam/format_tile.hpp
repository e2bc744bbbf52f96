#pragma once

#include "tile_fixture.hpp"

#include <penstock/cpu_adam/adam.hpp>

#include <gtest/gtest.h>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

namespace penstock::test {

using namespace cpu_adam;

/// A tile of any format, read in double by its documented layout, independently of the kernels.
class FormatTile {
 public:
  /// Where nothing else is said, parameters are in bf16, but in format moments in fp32.
  FormatTile(StateFormat format, std::size_t count, DType gradient_dtype = DType::fp32,
             std::uint64_t first_element = 0, std::optional<DType> parameter_dtype = {})
      : format_(format),
        count_(count),
        gradient_dtype_(gradient_dtype),
        parameter_dtype_(
            parameter_dtype.value_or(format == StateFormat::moments ? DType::fp32 : DType::bf16)),
        first_element_(first_element),
        state_(round_up(tile_bytes(format, ElementCount(count)).value(), Alignment(4))),
        gradient_(size_of(gradient_dtype) * count),
        parameter_(size_of(parameter_dtype_) * count) {}

  FormatTile(const TileKind& kind, std::size_t count, DType gradient_dtype = DType::fp32,
             std::uint64_t first_element = 0)
      : FormatTile(kind.format, count, gradient_dtype, first_element, kind.parameter) {}

  [[nodiscard]] AdamTile tile() const { return cut(0, count_); }
  /// Elements [first, first + count), `first` at a block's start.
  [[nodiscard]] AdamTile cut(std::size_t first, std::size_t count) const {
    const ByteCount begin = tile_bytes(format_, ElementCount(first)).value();
    return {.state = state_.span().subspan(begin, tile_bytes(format_, ElementCount(count)).value()),
            .gradient =
                gradient_.span().subspan(size_of(gradient_dtype_) * first, size_of(gradient_dtype_) * count),
            .parameter = parameter_.span().subspan(parameter_size() * first, parameter_size() * count),
            .elements = ElementCount(count),
            .gradient_dtype = gradient_dtype_,
            .parameter_dtype = parameter_dtype_,
            .format = format_,
            .first_element = first_element_ + first};
  }

  void initialize(const std::vector<float>& masters) {
    ASSERT_TRUE(initialize_tile(ConstHostSpan(std::span(masters)), DType::fp32, tile()).has_value());
  }
  void set_gradient(const std::vector<float>& gradient) {
    const std::size_t size = size_of(gradient_dtype_).value();
    for (std::size_t i = 0; i < count_; ++i) {
      put(gradient_dtype_, gradient_.span().data() + i * size, rounded_to(gradient_dtype_, gradient[i]));
    }
  }

  [[nodiscard]] float master(std::size_t i) const {
    const auto [block, at, n] = place(i);
    if (format_ == StateFormat::fp32) return get(DType::fp32, block + 4 * at);
    if (format_ == StateFormat::moments || format_ == StateFormat::moments_bf16) return parameter(i);
    const std::size_t begin = format_ == StateFormat::split        ? 8 * n
                              : format_ == StateFormat::split_bf16 ? 4 * n
                                                                   : 0;
    const auto upper = static_cast<std::uint32_t>(bits16(parameter_.span().data() + 2 * i)) << 16;
    const auto remainder = static_cast<std::int16_t>(bits16(block + begin + 2 * at));
    const std::uint32_t bits = upper + static_cast<std::uint32_t>(std::int32_t{remainder});
    // The sign bit of v says that the master is above its parameter by half the distance, and not below.
    const bool tie_down = remainder == -0x8000 && format_ != StateFormat::split_q8 && stored_v_is_negative(i);
    return std::bit_cast<float>(tie_down ? bits + 0x10000 : bits);
  }
  [[nodiscard]] float parameter(std::size_t i) const {
    return get(parameter_dtype_, parameter_.span().data() + parameter_size().value() * i);
  }
  [[nodiscard]] double m(std::size_t i) const { return moment(i, 0); }
  [[nodiscard]] double v(std::size_t i) const { return std::abs(moment(i, 1)); }
  [[nodiscard]] bool stored_v_is_negative(std::size_t i) const { return std::signbit(moment(i, 1)); }
  /// The distance between the codes around moment number `which` (0: m, 1: v) of magnitude `value`.
  [[nodiscard]] double spacing(std::size_t i, std::size_t which, double value) const {
    if (format_ != StateFormat::split_q8) return std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
    const int exponent = std::max(value > 0 ? std::ilogb(value) : -127, lowest_exponent(i, which));
    const bool fine = exponent >= scale(i, which) - 127 + (which == 0 ? 16 : 32);
    return std::ldexp(1.0, exponent - (which == 0 ? (fine ? 5 : 3) : (fine ? 7 : 4)));
  }
  /// Of split_q8: the exponent of the smallest normal code; of v, that of the smallest code.
  [[nodiscard]] int lowest_exponent(std::size_t i, std::size_t which) const {
    return scale(i, which) - 127 + (which == 0 ? 1 : 0);
  }
  /// Of split_q8: v with the lower 4 of its upper 7 mantissa bits set.
  [[nodiscard]] double v_bound(std::size_t i) const {
    const double eighth = std::ldexp(1.0, std::ilogb(v(i)) - 3);
    return (std::floor(v(i) / eighth) + 15.0 / 16) * eighth;
  }

  [[nodiscard]] std::vector<std::byte> parameters() const {
    return {parameter_.span().data(), parameter_.span().data() + parameter_size().value() * count_};
  }
  /// State, then parameter, as raw bytes.
  [[nodiscard]] std::vector<std::byte> bytes() const {
    const AdamTile whole = tile();
    std::vector<std::byte> all(whole.state.data(), whole.state.data() + whole.state.size().value());
    all.insert(all.end(), whole.parameter.data(), whole.parameter.data() + whole.parameter.size().value());
    return all;
  }

 private:
  [[nodiscard]] ByteCount parameter_size() const { return size_of(parameter_dtype_); }
  struct Place {
    const std::byte* block;
    std::size_t at, n;
  };
  [[nodiscard]] Place place(std::size_t i) const {
    const std::size_t first = i / 16384 * 16384;
    return {state_.span().data() + tile_bytes(format_, ElementCount(first)).value().value(), i - first,
            std::min<std::size_t>(16384, count_ - first)};
  }
  static std::uint16_t bits16(const std::byte* at) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, at, sizeof bits);
    return bits;
  }
  [[nodiscard]] double moment(std::size_t i, std::size_t which) const {
    const auto [block, at, n] = place(i);
    switch (format_) {
      case StateFormat::fp32: return get(DType::fp32, block + 4 * ((1 + which) * n + at));
      case StateFormat::moments:
      case StateFormat::split: return get(DType::fp32, block + 4 * (which * n + at));
      case StateFormat::moments_bf16:
      case StateFormat::split_bf16: return get(DType::bf16, block + 2 * (which * n + at));
      default: break;
    }
    return which == 0 ? q8_m(i, bits16(block + 2 * (n + at))) : q8_v(i, q8_v_code(i));
  }
  [[nodiscard]] double q8_m(std::size_t i, int word) const {
    const int code = word >> 7 & 0xff, exponent = scale(i, 0) - 127, sign = word >= 0x8000 ? -1 : 1;
    if (code < 8) return sign * std::ldexp(code, exponent + 1 - 3);
    if (code < 128) return sign * std::ldexp(8 + code % 8, exponent + code / 8 - 3);
    return sign * std::ldexp(32 + code % 32, exponent + 16 + (code - 128) / 32 - 5);
  }
  [[nodiscard]] double q8_v(std::size_t i, int code) const {
    const int exponent = scale(i, 1) - 127;
    if (code < 512) return std::ldexp(16 + code % 16, exponent + code / 16 - 4);
    return std::ldexp(128 + code % 128, exponent + 32 + (code - 512) / 128 - 7);
  }
  [[nodiscard]] int q8_v_code(std::size_t i) const {
    const auto [block, at, n] = place(i);
    const int pair = std::to_integer<int>(block[4 * n + at / 2]);
    return (bits16(block + 2 * (n + at)) & 0x7f) << 4 | (at % 2 > 0 ? pair >> 4 : pair & 0xf);
  }
  /// Of split_q8: the fp32 exponent field of exponent code 0.
  [[nodiscard]] int scale(std::size_t i, std::size_t which) const {
    const auto [block, at, n] = place(i);
    return std::to_integer<int>(block[4 * n + (n + 1) / 2 + which * ((n + 255) / 256) + at / 256]) + 4;
  }

  StateFormat format_;
  std::size_t count_;
  DType gradient_dtype_, parameter_dtype_;
  std::uint64_t first_element_;
  GuardedBytes state_, gradient_, parameter_;
};

}  // namespace penstock::test
