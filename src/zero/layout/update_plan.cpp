#include "zero/layout/update_plan.hpp"

#include "zero/config/device_update.hpp"
#include "zero/layout/choose_evenly.hpp"
#include "zero/layout/padded.hpp"
#include "zero/layout/update_slot.hpp"

#include <algorithm>
#include <cmath>

namespace penstock::zero {

namespace {

/// Tiles that pass through the device at a time: one is copied in, one is updated, one is copied out, and one is
/// verified or sealed.
constexpr std::uint32_t device_slots_max = 4;

}  // namespace

std::vector<ElementCount> tile_lengths(const Config& config, tiers::DeviceMemory device_memory) {
  const ElementCount shortest = config.penstock.tile();
  if (device_memory == tiers::DeviceMemory::host || config.penstock.tile_elements) return {shortest};
  switch (config.offload_optimizer.device) {
    case OffloadDevice::none: return {shortest * 64};
    case OffloadDevice::cpu:
      if (asks_device_to_update(config)) return {shortest * 16, shortest * 4, shortest};
      return {shortest};
    case OffloadDevice::nvme: return {shortest};
  }
  return {shortest};
}

Result<ByteCount> room_on_device(const MemoryPlan& plan, const Config& config, ByteCount largest,
                                 ByteCount all) {
  if (plan.gradients_on_device) return all;
  const ByteCount room = config.penstock.device_states;
  if (!plan.device_squares || room.is_zero() || plan.tiles == 0) return ByteCount();
  if (room >= largest) return room;
  return Error::invalid_config("plan_memory")
      .object("penstock.device_states")
      .reason("the largest tile has no room in the device's part of the states")
      .wanted("at least " + to_exact_string(largest) + ", or none")
      .got(room)
      .advice("raise it, leave it out, or set penstock.tile_elements to fewer");
}

void divide_update(MemoryPlan& plan, const Config& config, const RankBytes& rank) {
  MemoryPlan::Update& update = plan.update;
  update.split = plan.tiles_kept < plan.tiles ? config.penstock.update_split : UpdateSplit::ratio;
  if (!plan.device_squares) return;  // the device is the CPU
  const auto by_device = [&plan](std::uint64_t tile) {
    plan.tile_places[tile].updated_on_device = true;
    ++plan.update.tiles_by_device;
  };
  for (std::uint64_t tile = 0; tile < plan.tiles; ++tile) {
    if (plan.tile_kept(tile)) by_device(tile);
  }
  const bool automatic = update.split == UpdateSplit::automatic;
  const double share = automatic ? 1 : 1 - double(config.cpu_update_ratio);
  const ByteCount wanted(
      static_cast<std::uint64_t>(std::llround(share * static_cast<double>(rank.tiles.value()))));
  if (wanted <= plan.device_tiles) return;
  const ByteCount to_nearest((rank.largest_tile.value() - 1) / 2);
  update.streamed = choose_evenly(
      rank.tile_sizes, wanted - plan.device_tiles + to_nearest,
      [&plan](std::uint64_t tile) { return plan.tile_kept(tile); }, by_device);
}

Result<void> plan_update(MemoryPlan& plan, const Config& config, ElementCount longest_tile) {
  MemoryPlan::Update& update = plan.update;
  if (!plan.device_squares) return ok();
  const bool automatic = update.split == UpdateSplit::automatic;
  update.by_cpu = automatic || update.tiles_by_device < plan.tiles || plan.tiles == 0;  // all is frozen
  if (update.tiles_by_device == 0) return ok();
  PENSTOCK_TRY_ASSIGN(const UpdateSlot slot, UpdateSlot::of(plan, config, longest_tile));
  update.slot = round_up(slot.size, extent_alignment);
  update.device_slots =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(device_slots_max, update.tiles_by_device));
  return ok();
}

ByteCount host_results(const MemoryPlan& plan, ByteCount partials) {
  return round_up(
      plan.host_matrix + plan.host_piece + UpdateSlot::result * plan.update.device_slots + partials,
      extent_alignment);
}

}  // namespace penstock::zero
