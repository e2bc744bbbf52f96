// What of an engine's memory leaves with each of ParkKinds, and what stays.

#include "zero/engine/engine_state.hpp"

#include <utility>

namespace penstock::zero {

std::vector<DeviceRegion*> EngineState::regions_of(ParkKinds kinds) {
  std::vector<DeviceRegion*> regions;
  if (has(kinds, ParkKinds::parameters)) {
    if (!context_.flats_region.borrowed()) regions.push_back(&context_.flats_region);
    regions.push_back(&context_.parameter_region);
  }
  if (has(kinds, ParkKinds::gradients)) regions.push_back(&context_.gradient_region);
  if (has(kinds, ParkKinds::optimizer)) regions.push_back(&context_.optimizer_region);
  return regions;
}

std::vector<MemoryRange> EngineState::device_contents_of(ParkKinds kinds) const {
  std::vector<MemoryRange> ranges;
  const auto add = [&](std::string name, DeviceSpan bytes) {
    if (!bytes.empty()) ranges.push_back({std::move(name), bytes, {}});
  };
  for (const FlatState& flat : context_.flats) {
    const std::string& name = flat.layout->name;
    if (has(kinds, ParkKinds::parameters)) add(name + " parameter shard", flat.kept_shard);
    // Between two steps the accumulators have no contents.
    if (has(kinds, ParkKinds::gradients) && !gradients_.untouched(flat))
      add(name + " gradient shard", flat.kept_gradient);
    if (!has(kinds, ParkKinds::optimizer)) continue;
    for (const TileState& tile : flat.tiles) add(tile.name(), tile.kept);
  }
  if (has(kinds, ParkKinds::parameters)) {
    for (auto& [name, bytes] : checkpoints_->contents()) add(std::move(name), bytes);
  }
  return ranges;
}

std::vector<EngineState::HostRange> EngineState::host_ranges_of(ParkKinds kinds) const {
  std::vector<HostRange> ranges;
  const MemoryPlan& plan = options_.plan;
  const auto add = [&](std::string name, tiers::TensorId tensor, bool has_contents) {
    ranges.push_back({{std::move(name), {}, context_.internals.kept_range(tensor)}, has_contents});
  };
  for (const FlatState& flat : context_.flats) {
    const std::string& name = flat.layout->name;
    if (has(kinds, ParkKinds::parameters) && !plan.shards_on_device && !flat.shard_on_disk)
      add(name + " parameter shard", flat.shard, true);
    if (flat.layout->frozen) continue;
    if (has(kinds, ParkKinds::gradients) && !plan.gradients_on_device && !plan.gradients_on_disk)
      add(name + " gradient shard", flat.gradient, !gradients_.untouched(flat));
    if (!has(kinds, ParkKinds::optimizer)) continue;
    for (const TileState& tile : flat.tiles) {
      if (tile.place == TilePlace::memory) add(tile.name(), tile.tensor, true);
    }
  }
  if (has(kinds, ParkKinds::parameters)) {
    for (auto& [name, tensor, has_contents] : checkpoints_->in_host())
      add(std::move(name), tensor, has_contents);
  }
  return ranges;
}

std::vector<tiers::TensorId> EngineState::homes_of(ParkKinds kinds) const {
  std::vector<tiers::TensorId> homes;
  for (const FlatState& flat : context_.flats) {
    if (has(kinds, ParkKinds::parameters) && flat.shard_at_home) homes.push_back(flat.shard);
    if (!has(kinds, ParkKinds::optimizer)) continue;
    for (const TileState& tile : flat.tiles) {
      if (tile.place == TilePlace::home) homes.push_back(tile.tensor);
    }
  }
  return homes;
}

std::vector<std::string> EngineState::staying() const {
  const ParkKinds kinds = parking_.kinds;
  std::vector<std::string> lines;
  const auto add = [&](bool stays, ByteCount size, const std::string& what) {
    if (stays && !size.is_zero()) lines.push_back(to_string(size) + " " + what);
  };
  const MemoryPlan& plan = options_.plan;
  const bool parameters = has(kinds, ParkKinds::parameters), gradients = has(kinds, ParkKinds::gradients);
  add(parameters && context_.flats_region.borrowed(), context_.flats_region.size(),
      "on the device: gathered flats and full gradients are in memory that the communicator has registered");
  add(!parameters && gradients, context_.flats_region.size(),
      "on the device: full gradients share their memory with gathered flats, which leave with the "
      "parameters");
  add(true, context_.communicator.scratch(), "on the device: the communicator's memory for exact reductions");
  if (parking_.to == tiers::Tier::nvme) {
    ByteCount homes, in_host;
    for (const HostSpan& range : parking_.homes.ranges) homes += range.size();
    for (const HostRange& one : host_ranges_of(kinds)) in_host += one.range.size();
    in_host += homes;
    add(parking_.given_back.bytes < in_host, in_host - parking_.given_back.bytes,
        "in host memory: " + parking_.given_back.reason);
    add(!parameters, plan.home_shards, "in host memory: parameter shards have their home there");
    add(!has(kinds, ParkKinds::optimizer), plan.home_tiles,
        "in host memory: optimizer tiles have their home there");
    add(true, plan.host_staging() - plan.homes(), "in host memory: staging, which no tensor keeps");
    return lines;
  }
  add(parameters, plan.host_shards + plan.home_shards, "in host memory: parameter shards are kept there");
  add(gradients, plan.host_gradients, "in host memory: accumulated gradients are kept there");
  add(has(kinds, ParkKinds::optimizer), plan.host_tiles + plan.home_tiles,
      "in host memory: optimizer tiles are kept there");
  return lines;
}

void EngineState::relocate(DeviceSpan& range, std::span<const Relocation> relocations) {
  for (const Relocation& one : relocations) {
    if (!one.region->contains(range)) continue;
    range = one.region->translate(range, one.replacement);
    return;
  }
}

void EngineState::relocate_ranges(std::span<const Relocation> relocations) {
  for (FlatState& flat : context_.flats) {
    relocate(flat.kept_shard, relocations);
    relocate(flat.kept_gradient, relocations);
    for (TileState& tile : flat.tiles) relocate(tile.kept, relocations);
  }
  relocate(context_.partials, relocations);
  for (DeviceSpan& slot : device_update_.slots()) relocate(slot, relocations);
  relocate(checkpoints_->memory(), relocations);
}

}  // namespace penstock::zero
