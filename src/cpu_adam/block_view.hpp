#pragma once

#include <penstock/cpu_adam/adam.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::cpu_adam::detail {

/// Where the parts of block number `index` of a tile stand.
struct BlockView {
  StateFormat format;
  std::uint64_t first, count;  // elements, from the tile's start
  HostSpan state;
  ConstHostSpan gradient;  // these two are empty where the tile's are
  HostSpan parameter;

  BlockView(const AdamTile& tile, std::size_t index);

  /// Masters [at, at + values.size()) of the block; set_masters() writes the parameter too, whose dtype is
  /// given.
  void set_masters(std::size_t at, std::span<const float> values, DType parameter_dtype) const;
  void get_masters(std::size_t at, std::span<float> values) const;

 private:
  [[nodiscard]] std::uint16_t* remainder() const;
};

[[nodiscard]] std::size_t block_count(const AdamTile& tile);

/// values[i] = round(from[i]), to nearest even.
void convert(ConstHostSpan from, DType from_dtype, HostSpan to, DType to_dtype);

}  // namespace penstock::cpu_adam::detail
