#include "zero/layout/rank_bytes.hpp"

#include "zero/layout/padded.hpp"

#include <algorithm>

namespace penstock::zero {

Result<ByteCount> padded_tile(const Config& config, const FlatLayout& flat, const TileRange& range) {
  const cpu_adam::TileLayout format = tile_layout(config, flat);
  PENSTOCK_TRY_ASSIGN(const ByteCount bytes, cpu_adam::tile_bytes(format, range.count));
  return round_up(bytes, extent_alignment);
}

Result<RankBytes> RankBytes::of(const MemoryPlan& plan, const Config& config, const ShardLayout& shards) {
  RankBytes rank;
  for (std::size_t f = 0; f < shards.flats().size(); ++f) {
    const FlatLayout& flat = shards.flats()[f];
    const ByteCount shard = padded(flat.shard, config.dtype);
    rank.shards += shard;
    if (plan.shard_on_disk(f)) {
      rank.disk_shards += shard;
      if (flat.frozen) rank.disk_frozen_shards += shard;
      rank.largest_disk_shard = std::max(rank.largest_disk_shard, shard);
    }
    if (flat.frozen) continue;
    const ByteCount gradient = padded(flat.shard, config.grad_accum_dtype);
    rank.trained_shards += shard;
    rank.gradients += gradient;
    rank.largest_trained_shard = std::max(rank.largest_trained_shard, shard);
    rank.largest_gradient = std::max(rank.largest_gradient, gradient);
    for (const TileRange& range : cut_into_tiles(flat, plan.tile_elements)) {
      PENSTOCK_TRY_ASSIGN(const ByteCount bytes, padded_tile(config, flat, range));
      rank.tiles += bytes;
      rank.largest_tile = std::max(rank.largest_tile, bytes);
      rank.longest_tile = std::max(rank.longest_tile, range.count);
      ++rank.tile_count;
      rank.tile_sizes.push_back(bytes);
    }
  }
  return rank;
}

namespace {
const FlatLayout& longest_of(const ShardLayout& shards) {
  return *std::ranges::max_element(shards.flats(), {}, &FlatLayout::length);
}
}  // namespace

std::string longest_in_host(const ShardLayout& shards, const Config& config) {
  const FlatLayout& longest = longest_of(shards);
  std::string text =
      '"' + longest.name + "\", with a shard of " + to_string(padded(longest.shard, config.dtype));
  if (longest.frozen) return text;
  return text + " and a gradient of " + to_string(padded(longest.shard, config.grad_accum_dtype));
}

std::string longest_on_device(const ShardLayout& shards, const Config& config) {
  const FlatLayout& longest = longest_of(shards);
  const std::string gathered = to_string(padded(longest.length, config.dtype));
  return '"' + longest.name + "\", " + gathered + " gathered" +
         (longest.frozen ? "" : " and " + gathered + " of gradients");
}

RankBytes RankBytes::beside_device(const MemoryPlan& plan) const {
  RankBytes rest = *this;
  rest.tiles -= plan.device_tiles;
  rest.tile_count -= plan.tiles_kept;
  if (rest.tile_count == 0) rest.largest_tile = {};
  if (plan.gradients_on_device) rest.gradients = rest.largest_gradient = {};
  if (plan.shards_on_device) rest.shards = rest.trained_shards = rest.largest_trained_shard = {};
  return rest;
}

}  // namespace penstock::zero
