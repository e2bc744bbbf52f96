#pragma once

#include "zero/layout/rank_bytes.hpp"

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

/// The bytes of states that the device may keep: all where the optimizer is not offloaded, else penstock.device_states
/// where the device's memory is separate. `largest`, `all`: of the largest tile, and of all together.
///
/// Errors: invalid_config, if that is less than the largest tile.
[[nodiscard]] Result<ByteCount> room_on_device(const MemoryPlan& plan, const Config& config,
                                               ByteCount largest, ByteCount all);

/// Sets which tiles the device updates: those that it keeps, and of the others the part that the configuration gives
/// it, to half of the largest tile. Precondition: `plan` has its tiles, and those that are kept.
void divide_update(MemoryPlan& plan, const Config& config, const RankBytes& rank);

/// Sets the other members of plan.update but for the number of flats. Precondition: divide_update().
///
/// Errors: those of UpdateSlot::of().
Result<void> plan_update(MemoryPlan& plan, const Config& config, ElementCount longest_tile);

/// The host memory of what kernels report, which includes `partials` bytes of sums of squares, and of plan.host_piece.
[[nodiscard]] ByteCount host_results(const MemoryPlan& plan, ByteCount partials);

}  // namespace penstock::zero
