#include "cpu_adam/block_moments.hpp"

#include "kernels/state_codes.hpp"

#include <algorithm>
#include <cmath>

namespace penstock::cpu_adam::detail {

namespace {

using kernels::ScalarLane;
using M8 = kernels::Q8M<ScalarLane>;
using V8 = kernels::Q8V<ScalarLane>;

/// The random numbers with which to round to nearest: half of what is cut off. The first is for 7 mantissa bits, the
/// second for fewer: Q8Code uses the lower half.
constexpr kernels::U32 to_nearest = 0x80000000u, to_nearest_with_fewer_bits = 0x8000u;

// The places of the moments in a block; see state_format.hpp.
float* wide_moments(const BlockView& block, std::size_t moment) {
  const std::size_t masters = block.format == StateFormat::fp32 ? 1 : 0;
  const std::size_t place = keeps(block.optimizer, StateKind::first_moment) ? moment : 0;
  return reinterpret_cast<float*>(block.state.data()) + block.count * (masters + place);
}
std::uint16_t* half_moments(const BlockView& block, std::size_t moment) {
  return reinterpret_cast<std::uint16_t*>(block.state.data()) + block.count * moment;
}
std::uint16_t* q8_words(const BlockView& block) {
  return half_moments(block, 1);
}
std::uint8_t* q8_nibbles(const BlockView& block) {
  return reinterpret_cast<std::uint8_t*>(q8_words(block) + block.count);
}
std::uint8_t* q8_bases(const BlockView& block, std::size_t moment) {
  return q8_nibbles(block) + ceil_divide(block.count, std::uint64_t{2}) +
         ceil_divide(block.count, std::uint64_t{kernels::q8_run}) * moment;
}

float largest_magnitude(std::span<const float> values) {
  float largest = 0.0f;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

kernels::U32 nearest_half(float value) {
  return kernels::dithered(kernels::bits_of(value), to_nearest) >> 16;
}

// The sign bit of a stored v belongs to the master; see SplitMaster.
float with_sign(float v, float old) {
  return std::copysign(v, old);
}
std::uint16_t with_sign(std::uint16_t v, std::uint16_t old) {
  return static_cast<std::uint16_t>((v & 0x7fffu) | (old & 0x8000u));
}

kernels::U32 nearest_q8(const V8& scale, float v) {
  const auto rounded = [&](kernels::U32 random) { return scale.encoded(V8::rounded(v, random), random); };
  // Each is the nearest code for its number of mantissa bits, and no larger than the nearest one for the other.
  return std::max(rounded(to_nearest), rounded(to_nearest_with_fewer_bits));
}

void set_q8(const BlockView& block, std::span<const float> first, std::span<const float> second) {
  if (block.count % 2 > 0) q8_nibbles(block)[block.count / 2] = 0;  // the half that no element uses
  for (std::size_t begin = 0; begin < block.count; begin += kernels::q8_run) {
    const std::size_t run = begin / kernels::q8_run,
                      count = std::min<std::size_t>(kernels::q8_run, block.count - begin);
    const auto bits_max = [&](std::span<const float> values) {
      return kernels::bits_of(largest_magnitude(values.subspan(begin, count)));
    };
    q8_bases(block, 0)[run] = static_cast<std::uint8_t>(M8::Code::stored_base(bits_max(first)));
    q8_bases(block, 1)[run] = static_cast<std::uint8_t>(V8::Code::stored_base(bits_max(second)));
    const M8 m(q8_bases(block, 0)[run]);
    const V8 v(q8_bases(block, 1)[run]);
    for (std::size_t i = begin; i < begin + count; ++i) {
      const kernels::U32 code = nearest_q8(v, second[i]);
      q8_words(block)[i] =
          static_cast<std::uint16_t>(m.encoded(first[i], to_nearest_with_fewer_bits) | V8::word_part(code));
      ScalarLane::store_nibbles(q8_nibbles(block), i, V8::nibble_part(code));
    }
  }
}

/// Whether moments are stored in bf16; else, if not in codes, in fp32.
bool is_half(StateFormat format) {
  return format == StateFormat::split_bf16 || format == StateFormat::moments_bf16;
}

void set_half(const BlockView& block, std::span<const float> first, std::span<const float> second) {
  const auto rounded = [](float value) { return static_cast<std::uint16_t>(nearest_half(value)); };
  std::transform(first.begin(), first.end(), half_moments(block, 0), rounded);
  std::uint16_t* const v = half_moments(block, 1);
  if (block.format != StateFormat::split_bf16)
    return void(std::transform(second.begin(), second.end(), v, rounded));
  for (std::size_t i = 0; i < second.size(); ++i) v[i] = with_sign(rounded(second[i]), v[i]);
}

/// Reads a moment in fp32 or bf16.
void get_plain(const BlockView& block, std::size_t moment, std::size_t at, std::span<float> values) {
  if (!is_half(block.format)) {
    std::copy_n(wide_moments(block, moment) + at, values.size(), values.begin());
    return;
  }
  const std::uint16_t* const from = half_moments(block, moment) + at;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = kernels::float_of(static_cast<kernels::U32>(from[i]) << 16);
  }
}

}  // namespace

void set_moments(const BlockView& block, std::span<const float> first, std::span<const float> second) {
  if (block.format == StateFormat::split_q8) return set_q8(block, first, second);
  if (is_half(block.format)) return set_half(block, first, second);
  std::copy(first.begin(), first.end(), wide_moments(block, 0));
  float* const v = wide_moments(block, 1);
  if (block.format != StateFormat::split) return void(std::copy(second.begin(), second.end(), v));
  for (std::size_t i = 0; i < second.size(); ++i) v[i] = with_sign(second[i], v[i]);
}

void get_first_moments(const BlockView& block, std::size_t at, std::span<float> values) {
  if (block.format != StateFormat::split_q8) return get_plain(block, 0, at, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const M8 scale(q8_bases(block, 0)[(at + i) / kernels::q8_run]);
    values[i] = scale.decoded(q8_words(block)[at + i], 1.0f);
  }
}

void get_second_moments(const BlockView& block, std::size_t at, std::span<float> values) {
  if (block.format != StateFormat::split_q8) {
    get_plain(block, 1, at, values);
    if (is_custom(block.optimizer)) return;
    for (float& value : values) value = std::abs(value);  // the stored sign belongs to the master
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const V8 scale(q8_bases(block, 1)[(at + i) / kernels::q8_run]);
    values[i] = scale.decoded(
        V8::joined(q8_words(block)[at + i], ScalarLane::load_nibbles(q8_nibbles(block), at + i)));
  }
}

}  // namespace penstock::cpu_adam::detail
