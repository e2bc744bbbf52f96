#pragma once

#include "zero/layout/shard_layout.hpp"
#include "zero/layout/tiles.hpp"

#include <penstock/tiers/store/tensor.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/layout/memory_plan.hpp>

#include <string>

namespace penstock::zero {

/// What the names of a flat's tensors have after its own.
inline constexpr const char *of_parameters = " parameter shard", *of_gradients = " gradient shard";

// The tensors that the engine of a rank adds to its runtime, without their keys.

/// The rank's shard of the parameters of a flat.
[[nodiscard]] tiers::TensorDescription shard_tensor(const Config& config, const FlatLayout& flat,
                                                    bool at_home);
/// The accumulated gradient of the shard.
[[nodiscard]] tiers::TensorDescription gradient_tensor(const Config& config, const FlatLayout& flat);
/// A reduced gradient on its way to the accumulated one.
[[nodiscard]] tiers::TensorDescription incoming_gradient_tensor(const Config& config, const FlatLayout& flat);
/// An activation checkpoint that may leave the device.
[[nodiscard]] tiers::TensorDescription checkpoint_tensor(std::uint32_t number, ByteCount size, bool on_disk);
/// Where a tile is.
enum class TilePlace : std::uint8_t {
  device,  ///< only in the device's memory: it is no tensor
  memory,  ///< only in host memory
  home,    ///< it has a place on disk, and its home in host memory
  disk     ///< in host memory only for its update
};
[[nodiscard]] constexpr bool is_on_disk(TilePlace place) {
  return place == TilePlace::home || place == TilePlace::disk;
}
[[nodiscard]] TilePlace place_of_tile(const MemoryPlan& plan, std::uint64_t tile);
/// The optimizer states of a range of the shard. `number`: among the flat's tiles. The runtime computes the checksums
/// of a tile at home when it stores it, the update those of one on disk.
[[nodiscard]] tiers::TensorDescription tile_tensor(const Config& config, const FlatLayout& flat,
                                                   TileRange range, std::uint32_t number, TilePlace place);
[[nodiscard]] std::string tile_name(const FlatLayout& flat, std::uint32_t number);

}  // namespace penstock::zero
