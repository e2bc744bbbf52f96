#pragma once

#include <penstock/cpu_adam/state_format.hpp>
#include "zero/layout/shard_layout.hpp"

#include <algorithm>
#include <vector>

namespace penstock::zero {

/// A range of elements of a flat's shard.
struct TileRange {
  ElementCount begin, count;
};

/// Cuts a shard into tiles of `tile` elements, the last one possibly shorter. A tile never crosses a flat.
inline std::vector<TileRange> cut_into_tiles(const FlatLayout& flat, ElementCount tile) {
  std::vector<TileRange> tiles;
  for (ElementCount begin; begin < flat.shard; begin += tile) {
    tiles.push_back({begin, std::min(tile, flat.shard - begin)});
  }
  return tiles;
}

}  // namespace penstock::zero
