#pragma once

#include <penstock/zero/config/config.hpp>
#include <penstock/zero/layout/memory_plan.hpp>

namespace penstock::zero {

/// The elements of a tile. Tiles that are kept in the device's memory are not transferred: longer ones need fewer
/// kernels.
[[nodiscard]] ElementCount tile_elements(const Config& config, bool on_device);

/// Who updates the tiles: all but the number of flats. Precondition: `plan` has its number of tiles, and what is kept
/// on the device.
///
/// Errors: those of UpdateSlot::of().
[[nodiscard]] Result<MemoryPlan::Update> plan_update(const MemoryPlan& plan, const Config& config,
                                                     ElementCount longest_tile);

/// The host memory of what kernels report, which includes `partials` bytes of sums of squares, and of plan.host_piece.
[[nodiscard]] ByteCount host_results(const MemoryPlan& plan, ByteCount partials);

}  // namespace penstock::zero
