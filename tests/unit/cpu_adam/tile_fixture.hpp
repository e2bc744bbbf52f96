#pragma once

#include "kit/guard_pages.hpp"
#include "kit/seeded_random.hpp"

#include <penstock/cpu_adam/adam.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace penstock::test {

using namespace cpu_adam;

inline constexpr Isa isas[] = {Isa::scalar, Isa::x86_64_v2, Isa::x86_64_v3, Isa::x86_64_v4, Isa::neon};

/// Whole-tile values in element order, without blocks.
struct TileValues {
  std::vector<float> master, m, v, gradient;

  [[nodiscard]] std::size_t size() const { return master.size(); }
};

/// Training-like values of wide range, a few of them special.
inline TileValues random_values(std::size_t count, std::uint64_t seed) {
  SeededRandom random(seed);
  TileValues values;
  for (std::size_t i = 0; i < count; ++i) {
    const float scale = std::ldexp(1.0f, static_cast<int>(random.below(24)) - 16);
    values.master.push_back(random.symmetric());
    values.gradient.push_back(random.symmetric() * scale);
    values.m.push_back(random.symmetric() * scale);
    const float root = random.symmetric() * scale;
    values.v.push_back(root * root);
  }
  return values;
}

/// A state format and what its parameters are.
struct TileKind {
  StateFormat format;
  DType parameter = DType::bf16;

  [[nodiscard]] std::string name() const {
    return std::string(to_string(format)) + "_" + std::string(to_string(parameter));
  }
  /// The master that a tile is given `master` as.
  [[nodiscard]] float stored(float master) const;
};
/// The kinds whose 16-bit parameters are the masters.
inline constexpr TileKind narrow_kinds[] = {{StateFormat::moments, DType::bf16},
                                            {StateFormat::moments, DType::fp16},
                                            {StateFormat::moments_bf16, DType::bf16}};

/// A master halfway between two bf16 numbers: every other one of which is rounded down, half of them negative.
inline float tie(std::size_t number) {
  const float magnitude = static_cast<float>(2 * (number % 128) + 1 + 256) * 0x1p-8f;
  return number / 2 % 2 == 0 ? magnitude : -magnitude;
}

/// 16-bit formats as the tests write them, independently of the library: through double and std::ldexp.
[[nodiscard]] float rounded_to(DType dtype, double value);
/// The distance between the numbers of a 16-bit dtype around `value`.
[[nodiscard]] double spacing_of(DType dtype, double value);
/// Stores `value`, which the dtype represents.
void put(DType dtype, std::byte* at, float value);
[[nodiscard]] float get(DType dtype, const std::byte* at);

inline float TileKind::stored(float master) const {
  const bool is_parameter = format == StateFormat::moments || format == StateFormat::moments_bf16;
  return is_parameter ? rounded_to(parameter, master) : master;
}

/// A tile whose three spans end at inaccessible pages, or `slack` elements before.
class TileMemory {
 public:
  TileMemory(std::size_t count, DType gradient_dtype, DType parameter_dtype, std::size_t slack = 0)
      : count_(count),
        gradient_dtype_(gradient_dtype),
        parameter_dtype_(parameter_dtype),
        state_(ByteCount(12 * count + 4 * slack)),
        gradient_(size_of(gradient_dtype) * (count + slack)),
        parameter_(size_of(parameter_dtype) * (count + slack)) {}

  [[nodiscard]] AdamTile tile() const { return cut(0, count_); }
  /// Elements [first, first + count), `first` at a block's start.
  [[nodiscard]] AdamTile cut(std::size_t first, std::size_t count) const {
    const auto part = [&](const GuardedBytes& memory, ByteCount size) {
      return memory.span().subspan(size * first, size * count);
    };
    return {.state = part(state_, ByteCount(12)),
            .gradient = part(gradient_, size_of(gradient_dtype_)),
            .parameter = part(parameter_, size_of(parameter_dtype_)),
            .elements = ElementCount(count),
            .gradient_dtype = gradient_dtype_,
            .parameter_dtype = parameter_dtype_};
  }

  /// Rounds the gradient to its dtype.
  void set(const TileValues& values) {
    for (std::size_t i = 0; i < count_; ++i) {
      put(DType::fp32, at(i, 0), values.master[i]);
      put(DType::fp32, at(i, 1), values.m[i]);
      put(DType::fp32, at(i, 2), values.v[i]);
    }
    set_gradient(values.gradient);
  }
  void set_gradient(const std::vector<float>& gradient) {
    const std::uint64_t size = size_of(gradient_dtype_).value();
    for (std::size_t i = 0; i < count_; ++i) {
      put(gradient_dtype_, gradient_.span().data() + i * size, rounded_to(gradient_dtype_, gradient[i]));
    }
  }
  void set_master(std::size_t i, float value) { put(DType::fp32, at(i, 0), value); }

  [[nodiscard]] float master(std::size_t i) const { return get(DType::fp32, at(i, 0)); }
  [[nodiscard]] float m(std::size_t i) const { return get(DType::fp32, at(i, 1)); }
  [[nodiscard]] float v(std::size_t i) const { return get(DType::fp32, at(i, 2)); }
  [[nodiscard]] float gradient(std::size_t i) const {
    return get(gradient_dtype_, gradient_.span().data() + i * size_of(gradient_dtype_).value());
  }
  [[nodiscard]] float parameter(std::size_t i) const {
    return get(parameter_dtype_, parameter_.span().data() + i * size_of(parameter_dtype_).value());
  }
  /// State, then parameter, as raw bytes.
  [[nodiscard]] std::vector<std::byte> result_bytes() const {
    const AdamTile whole = tile();
    std::vector<std::byte> bytes(whole.state.size().value() + whole.parameter.size().value());
    std::copy_n(whole.state.data(), whole.state.size().value(), bytes.data());
    std::copy_n(whole.parameter.data(), whole.parameter.size().value(),
                bytes.data() + whole.state.size().value());
    return bytes;
  }

 private:
  /// Element i's part of state 0 (master), 1 (m) or 2 (v), by the documented layout.
  [[nodiscard]] std::byte* at(std::size_t i, std::size_t state) const {
    const std::size_t block = i / 16384, first = block * 16384;
    const std::size_t length = std::min<std::size_t>(16384, count_ - first);
    return state_.span().data() + 12 * first + 4 * (state * length + (i - first));
  }

  std::size_t count_;
  DType gradient_dtype_, parameter_dtype_;
  GuardedBytes state_, gradient_, parameter_;
};

}  // namespace penstock::test
