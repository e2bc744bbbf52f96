#pragma once

#include <penstock/zero/config/config.hpp>
#include <penstock/zero/layout/memory_plan.hpp>

#include <vector>

namespace penstock::zero {

/// The elements that a tile may have, most first. A plan takes the first length that fits the device's budget and
/// makes at least streamed_tiles_min tiles, or the last. Tiles that are kept in the device's memory are not moved:
/// longer ones need fewer kernels. Those that pass through it from host memory do so at the rate of the link only if
/// they are long: on an H100, tiles of 3 MiB at 0.4 of it, of 48 MiB at 0.95.
[[nodiscard]] std::vector<ElementCount> tile_lengths(const Config& config, tiers::DeviceMemory device_memory);
/// So many that a ratio of them is exact to 1 %.
inline constexpr std::uint64_t streamed_tiles_min = 64;

/// How many tiles the device keeps: all where the optimizer is not offloaded, else as many as fit in
/// penstock.device_states. `largest`, `all`: bytes of the largest tile, and of all together. Precondition: `plan` has
/// its number of tiles, and says whether the device's memory is separate, and whether it keeps the gradients.
///
/// Errors: invalid_config, if the configured room does not suffice for a tile.
[[nodiscard]] Result<std::uint64_t> tiles_to_keep(const MemoryPlan& plan, const Config& config,
                                                  ByteCount largest, ByteCount all);

/// Sets who updates the tiles: plan.update but for the number of flats. Precondition: `plan` has its number of tiles,
/// and what is kept on the device.
///
/// Errors: those of UpdateSlot::of().
Result<void> plan_update(MemoryPlan& plan, const Config& config, ElementCount longest_tile);

/// The host memory of what kernels report, which includes `partials` bytes of sums of squares, and of plan.host_piece.
[[nodiscard]] ByteCount host_results(const MemoryPlan& plan, ByteCount partials);

}  // namespace penstock::zero
