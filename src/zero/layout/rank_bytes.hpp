#pragma once

#include "zero/layout/tiles.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/units.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/layout/memory_plan.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::zero {

/// The bytes of one rank by kind, and the largest tensor of each kind, padded as extents are.
struct RankBytes {
  ByteCount shards, gradients, tiles;
  ByteCount trained_shards;                   ///< of shards: those that are not frozen
  ByteCount disk_shards, disk_frozen_shards;  ///< of shards: those of flats from MemoryPlan::flats_in_host on
  ByteCount largest_trained_shard, largest_disk_shard, largest_gradient, largest_tile;
  ElementCount longest_tile;
  std::uint64_t tile_count = 0;
  std::vector<ByteCount> tile_sizes = {};  ///< of all, in the order of the update

  /// Of a plan with these members: tile_elements, shards_on_disk and flats_in_host. Errors: those of
  /// cpu_adam::tile_bytes().
  [[nodiscard]] static Result<RankBytes> of(const MemoryPlan& plan, const Config& config,
                                            const ShardLayout& shards);
  /// What is left in host memory and on disk of a plan whose device_tiles are set, beside what its device keeps.
  [[nodiscard]] RankBytes beside_device(const MemoryPlan& plan) const;
};

/// For an error of a budget, which grows with the longest flat: its name, and what it takes of a rank's host memory, or
/// of its device.
[[nodiscard]] std::string longest_in_host(const ShardLayout& shards, const Config& config);
[[nodiscard]] std::string longest_on_device(const ShardLayout& shards, const Config& config);

/// The bytes of a tile.
[[nodiscard]] Result<ByteCount> padded_tile(const Config& config, const FlatLayout& flat,
                                            const TileRange& range);

}  // namespace penstock::zero
