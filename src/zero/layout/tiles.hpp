#pragma once

#include <penstock/cpu_adam/state_format.hpp>
#include <penstock/zero/config/config.hpp>
#include "zero/layout/shard_layout.hpp"

#include <algorithm>
#include <vector>

namespace penstock::zero {

/// What tiles store. With fp32 parameters, the parameter is the master, and the tile holds the moments alone; without
/// moments the tile holds the master all the same, so that no tile is empty.
[[nodiscard]] constexpr cpu_adam::TileLayout tile_layout(cpu_adam::StateFormat configured, DType parameters,
                                                         cpu_adam::Optimizer optimizer) {
  using cpu_adam::StateFormat;
  const bool moments_alone = configured == StateFormat::fp32 && parameters == DType::fp32 &&
                             optimizer != cpu_adam::Optimizer::custom_no_moments;
  return {moments_alone ? StateFormat::moments : configured, optimizer};
}
[[nodiscard]] inline cpu_adam::TileLayout tile_layout(const Config& config) {
  return tile_layout(config.penstock.state_format, config.dtype, config.optimizer.type);
}
/// Of the tiles of a flat: with Muon, those of matrices are its own, and all others AdamW's.
[[nodiscard]] inline cpu_adam::TileLayout tile_layout(const Config& config, const FlatLayout& flat) {
  using cpu_adam::Optimizer;
  const Optimizer type = config.optimizer.type;
  return tile_layout(config.penstock.state_format, config.dtype,
                     type == Optimizer::muon && !flat.has_matrices() ? Optimizer::adam : type);
}

/// A range of elements of a flat's shard.
struct TileRange {
  ElementCount begin, count;
};

/// Cuts a shard into tiles of `tile` elements, the last one possibly shorter; that of a flat of matrices into one tile
/// for each. A tile never crosses a flat. A frozen flat has none.
inline std::vector<TileRange> cut_into_tiles(const FlatLayout& flat, ElementCount tile) {
  std::vector<TileRange> tiles;
  if (flat.frozen) return tiles;
  if (flat.has_matrices()) {
    ElementCount begin;
    for (const ElementCount count : flat.matrix_ranges) {
      tiles.push_back({begin, count});
      begin += count;
    }
    return tiles;
  }
  for (ElementCount begin; begin < flat.shard; begin += tile) {
    tiles.push_back({begin, std::min(tile, flat.shard - begin)});
  }
  return tiles;
}

}  // namespace penstock::zero
