#include "cpu_adam/block_view.hpp"

#include "kernels/state_codes.hpp"

#include <penstock/base/check.hpp>
#include "kernels/host_gradient.hpp"

#include <algorithm>

namespace penstock::cpu_adam::detail {

using Master = kernels::SplitMaster<kernels::ScalarLane>;

BlockView::BlockView(const AdamTile& tile, std::size_t index)
    : format(tile.format),
      first(index * block_elements.value()),
      count(std::min(block_elements.value(), tile.elements.value() - first)) {
  const auto part = [&](auto span, DType dtype) {
    return span.subspan(size_of(dtype) * first, size_of(dtype) * count);
  };
  state = tile.state.subspan(*block_bytes(format, block_elements) * index,
                             *block_bytes(format, ElementCount(count)));
  if (!tile.parameter.empty()) parameter = part(tile.parameter, tile.parameter_dtype);
  if (!tile.gradient.empty()) gradient = part(tile.gradient, tile.gradient_dtype);
}

std::uint16_t* BlockView::remainder() const {
  const std::uint64_t moments = format == StateFormat::split        ? 2 * sizeof(float)
                                : format == StateFormat::split_bf16 ? 2 * sizeof(std::uint16_t)
                                                                    : 0;
  return reinterpret_cast<std::uint16_t*>(state.data() + moments * count);
}

void BlockView::set_masters(std::size_t at, std::span<const float> values, DType parameter_dtype) const {
  if (format == StateFormat::fp32) {
    std::copy(values.begin(), values.end(), state.as<float>().data() + at);
    const ByteCount size = size_of(parameter_dtype);
    return convert(ConstHostSpan(values), DType::fp32, parameter.subspan(size * at, size * values.size()),
                   parameter_dtype);
  }
  std::uint16_t *const uppers = parameter.as<std::uint16_t>().data() + at, *const rests = remainder() + at;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Master halves(kernels::bits_of(values[i]));
    uppers[i] = static_cast<std::uint16_t>(halves.parameter);
    rests[i] = static_cast<std::uint16_t>(halves.remainder);
  }
}

void BlockView::get_masters(std::size_t at, std::span<float> values) const {
  if (format == StateFormat::fp32) {
    std::copy_n(state.as<float>().data() + at, values.size(), values.begin());
    return;
  }
  const std::uint16_t *const uppers = parameter.as<std::uint16_t>().data() + at, *const rests =
                                                                                     remainder() + at;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = kernels::float_of(Master(uppers[i], rests[i]).bits());
  }
}

std::size_t block_count(const AdamTile& tile) {
  return ceil_divide(tile.elements.value(), block_elements.value());
}

void convert(ConstHostSpan from, DType from_dtype, HostSpan to, DType to_dtype) {
  const auto converted =
      kernels::accumulate_gradient({from, from_dtype, to, to_dtype}, kernels::GradientWrite::overwrite);
  PENSTOCK_CHECK(converted.has_value());
}

}  // namespace penstock::cpu_adam::detail
