#pragma once

#include <penstock/cpu_adam/optimizer_tile.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::cpu_adam::detail {

/// The spans of block number `index` of a tile.
struct BlockView {
  StateFormat format;
  Optimizer optimizer;
  DType parameter_dtype;
  std::uint64_t first, count;  // elements, from the tile's start
  HostSpan state;
  ConstHostSpan gradient;  // gradient and parameter are empty if the tile's are
  HostSpan parameter;

  BlockView(const OptimizerTile& tile, std::size_t index);

  /// Set and read masters [at, at + values.size()) of the block. set_masters() also writes the parameter, and keeps the
  /// values of the moments. 16-bit masters are rounded to nearest. In split formats NaNs lose their payload.
  void set_masters(std::size_t at, std::span<const float> values) const;
  void get_masters(std::size_t at, std::span<float> values) const;

 private:
  [[nodiscard]] HostSpan parameters(std::size_t at, std::size_t some) const;
  template <class Body>
  void with_v(std::size_t at, const Body& body) const;
  [[nodiscard]] bool has_remainder() const;
  [[nodiscard]] std::uint16_t* remainder() const;
};

[[nodiscard]] std::size_t block_count(const OptimizerTile& tile);

/// Calls body(first, last) for disjoint ranges of [0, count): on `workers`, or on the calling thread if that is null.
template <class Body>
void parallel_blocks(parallel::Workers* workers, std::size_t count, const Body& body) {
  if (workers) {
    workers->parallel_blocks(count, body);
  } else {
    body(0, count);
  }
}

/// to[i] = round(from[i]), to nearest even.
void convert(ConstHostSpan from, DType from_dtype, HostSpan to, DType to_dtype);

}  // namespace penstock::cpu_adam::detail
