#include "cpu_adam/block_view.hpp"

#include "kernels/state_codes.hpp"

#include <penstock/base/check.hpp>
#include "kernels/host_gradient.hpp"

#include <algorithm>
#include <type_traits>

namespace penstock::cpu_adam::detail {

using Master = kernels::SplitMaster<kernels::ScalarLane>;

namespace {

// The sign bit of a second moment belongs to its master, see SplitMaster.
std::uint32_t sign_of(float v) {
  return kernels::bits_of(v) >> 31;
}
std::uint32_t sign_of(std::uint16_t v) {
  return v >> 15;
}
void set_sign(float& v, std::uint32_t sign) {
  v = kernels::float_of((kernels::bits_of(v) & ~kernels::sign_bit) | sign << 31);
}
void set_sign(std::uint16_t& v, std::uint32_t sign) {
  v = static_cast<std::uint16_t>((v & 0x7fffu) | sign << 15);
}

template <class V>
constexpr bool has_signs = !std::is_null_pointer_v<V>;

}  // namespace

/// Calls body with the address of v's element `at`, a float or a bf16 number; with null in split_q8, whose v has no
/// sign bit.
template <class Body>
void BlockView::with_v(std::size_t at, const Body& body) const {
  if (format == StateFormat::split) return body(reinterpret_cast<float*>(state.data()) + count + at);
  if (format == StateFormat::split_bf16)
    return body(reinterpret_cast<std::uint16_t*>(state.data()) + count + at);
  body(nullptr);
}

BlockView::BlockView(const OptimizerTile& tile, std::size_t index)
    : format(tile.format),
      optimizer(tile.optimizer),
      parameter_dtype(tile.parameter_dtype),
      first(index * block_elements.value()),
      count(std::min(block_elements.value(), tile.elements.value() - first)) {
  const auto part = [&](auto span, DType dtype) {
    return span.subspan(size_of(dtype) * first, size_of(dtype) * count);
  };
  state = tile.state.subspan(*block_bytes(tile.layout(), block_elements) * index,
                             *block_bytes(tile.layout(), ElementCount(count)));
  if (!tile.parameter.empty()) parameter = part(tile.parameter, parameter_dtype);
  if (!tile.gradient.empty()) gradient = part(tile.gradient, tile.gradient_dtype);
}

bool BlockView::has_remainder() const {
  return format == StateFormat::split || format == StateFormat::split_bf16 || format == StateFormat::split_q8;
}

std::uint16_t* BlockView::remainder() const {
  const std::uint64_t moments = format == StateFormat::split        ? 2 * sizeof(float)
                                : format == StateFormat::split_bf16 ? 2 * sizeof(std::uint16_t)
                                                                    : 0;
  return reinterpret_cast<std::uint16_t*>(state.data() + moments * count);
}

HostSpan BlockView::parameters(std::size_t at, std::size_t some) const {
  const ByteCount size = size_of(parameter_dtype);
  return parameter.subspan(size * at, size * some);
}

void BlockView::set_masters(std::size_t at, std::span<const float> values) const {
  if (!has_remainder()) {
    if (format == StateFormat::fp32) std::copy(values.begin(), values.end(), state.as<float>().data() + at);
    return convert(ConstHostSpan(values), DType::fp32, parameters(at, values.size()), parameter_dtype);
  }
  std::uint16_t *const uppers = parameter.as<std::uint16_t>().data() + at, *const rests = remainder() + at;
  with_v(at, [&](auto v) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      Master halves(kernels::storable(kernels::bits_of(values[i])));
      if constexpr (has_signs<decltype(v)>) {
        const std::uint32_t down = halves.odd_ties();
        halves.round_down(down);
        set_sign(v[i], down);
      }
      uppers[i] = static_cast<std::uint16_t>(halves.parameter);
      rests[i] = static_cast<std::uint16_t>(halves.remainder);
    }
  });
}

void BlockView::get_masters(std::size_t at, std::span<float> values) const {
  if (format == StateFormat::fp32) {
    std::copy_n(state.as<float>().data() + at, values.size(), values.begin());
    return;
  }
  if (!has_remainder()) {
    return convert(parameters(at, values.size()), parameter_dtype, HostSpan(values), DType::fp32);
  }
  const std::uint16_t *const uppers = parameter.as<std::uint16_t>().data() + at, *const rests =
                                                                                     remainder() + at;
  with_v(at, [&](auto v) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      Master halves{uppers[i], rests[i]};
      if constexpr (has_signs<decltype(v)>) halves.round_up(sign_of(v[i]));
      values[i] = kernels::float_of(halves.bits());
    }
  });
}

std::size_t block_count(const OptimizerTile& tile) {
  return ceil_divide(tile.elements.value(), block_elements.value());
}

void convert(ConstHostSpan from, DType from_dtype, HostSpan to, DType to_dtype) {
  const auto converted =
      kernels::accumulate_gradient({from, from_dtype, to, to_dtype}, kernels::GradientWrite::overwrite);
  PENSTOCK_CHECK(converted.has_value());
}

}  // namespace penstock::cpu_adam::detail
