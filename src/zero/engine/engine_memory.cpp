// The memory of an engine: its tensors, its ranges of the device's memory, and what the plan predicts of both.

#include "zero/engine/engine_state.hpp"
#include "zero/engine/runtime_room.hpp"
#include "zero/layout/engine_tensors.hpp"
#include "zero/layout/padded.hpp"
#include "zero/layout/runtime_use.hpp"
#include "zero/layout/update_slot.hpp"

namespace penstock::zero {

Result<void> EngineState::join_runtime() {
  PENSTOCK_TRY(context_.internals.add_user(
      runtime_use(options_.plan, options_.engine_number),
      [this](std::span<const swap::RuntimeUse> all) { return check_room(context_.runtime, all); }));
  joined_ = true;
  return ok();
}

Result<void> EngineState::open_memory() {
  const MemoryPlan& plan = options_.plan;
  communicator_scratch_.count(context_.communicator.scratch(), tiers::Purpose::scratch);
  if (plan.device_squares)
    context_.partials = context_.gradient_region.take(plan.device_partials, tiers::Purpose::scratch);
  std::uint64_t tile_number = 0;
  for (std::uint32_t f = 0; f < context_.flats.size(); ++f) PENSTOCK_TRY(add_flat(f, tile_number));
  PENSTOCK_TRY(open_results());
  PENSTOCK_TRY(open_checkpoints());
  predict();
  return ok();
}

/// The memory to which results of kernels and what is kept on the device are copied, and the slots of the tiles that
/// the device updates.
Result<void> EngineState::open_results() {
  const MemoryPlan& plan = options_.plan;
  if (plan.host_results.is_zero()) return ok();
  tiers::TensorId results{};
  PENSTOCK_TRY_ASSIGN(results, context_.internals.add(
                                   {.name = "results of the device",
                                    .key = {.owner = options_.engine_number, .role = tiers::Purpose::scratch},
                                    .purpose = tiers::Purpose::scratch,
                                    .size = plan.host_results},
                                   false));
  tensors_.push_back(results);
  PENSTOCK_TRY_ASSIGN(context_.results,
                      context_.internals.acquire(results, swap::Access::overwrite, swap::Use::unrecorded));
  HostSpan rest = context_.results.bytes();
  const auto take = [&rest](ByteCount size) {
    const HostSpan taken = rest.subspan({}, size);
    rest = rest.subspan(size, rest.size() - size);
    return taken;
  };
  if (!plan.host_matrix.is_zero()) PENSTOCK_TRY(muon_update_.open(take(plan.host_matrix)));
  const HostSpan piece = take(plan.host_piece);
  if (plan.device_squares) {
    for (FlatState& flat : context_.flats) {
      if (!flat.layout->frozen) flat.grad.partials = take(partials_bytes(flat.layout->shard));
    }
  }
  const std::uint32_t slots = plan.update.device_slots;
  if (slots == 0 && piece.empty()) return ok();
  return device_update_.open(
      plan, context_.optimizer_region.take(plan.update.device_bytes(), tiers::Purpose::optimizer_tile),
      take(UpdateSlot::result * slots), piece);
}

Result<void> EngineState::open_checkpoints() {
  const MemoryPlan::Checkpoints& plan = options_.plan.checkpoints;
  std::vector<tiers::TensorId> tensors;
  if (plan.leave_device()) {
    PENSTOCK_TRY_ASSIGN(context_.checkpoint_in,
                        context_.create_stream("stream of checkpoints to the device"));
  }
  for (std::uint32_t i = 0; plan.leave_device() && i < plan.count; ++i) {
    const bool on_disk = i < plan.count - plan.in_host;
    tiers::TensorDescription description = checkpoint_tensor(i, options_.model.checkpoints.size, on_disk);
    description.key = {.owner = options_.engine_number, .unit = i, .role = tiers::Purpose::checkpoint};
    description.sealed_in_pass = options_.config.penstock.integrity == Integrity::off;
    PENSTOCK_TRY_ASSIGN(const auto tensor, context_.internals.add(std::move(description), on_disk));
    tensors_.push_back(tensor);
    tensors.push_back(tensor);
  }
  const DeviceSpan slots =
      plan.count == 0 ? DeviceSpan()
                      : context_.parameter_region.take(plan.device_bytes(), tiers::Purpose::checkpoint);
  checkpoints_.emplace(context_, plan, slots, std::move(tensors));
  return ok();
}

Result<void> EngineState::add(tiers::TensorId& id, const FlatLayout& flat, TileRange range,
                              tiers::TensorDescription description, bool on_disk) {
  const ElementCount shard_begin = flat.shard * context_.communicator.rank();
  description.key = {.owner = options_.engine_number,
                     .unit = flat.unit,
                     .group = flat.group,
                     .role = description.purpose,
                     .first = (shard_begin + range.begin).value(),
                     .count = range.count.value()};
  PENSTOCK_TRY_ASSIGN(auto added, context_.internals.add(std::move(description), on_disk));
  tensors_.push_back(id = added);
  return ok();
}

/// The flat's shard and gradients, and its tiles.
Result<void> EngineState::add_flat(std::uint32_t index, std::uint64_t& tile_number) {
  context_.flats[index].shard_on_disk = options_.plan.shard_on_disk(index);
  context_.flats[index].shard_at_home = options_.plan.shard_at_home(index);
  PENSTOCK_TRY(add_shard(context_.flats[index]));
  if (context_.flats[index].layout->frozen) return ok();
  PENSTOCK_TRY(add_gradients(context_.flats[index]));
  return add_tiles(index, tile_number);
}

namespace {
DeviceSpan keep(DeviceRegion& region, ByteCount size, tiers::Purpose purpose) {
  return region.take(round_up(size, extent_alignment), purpose).subspan({}, size);
}
}  // namespace

Result<void> EngineState::add_shard(FlatState& flat) {
  const FlatLayout& layout = *flat.layout;
  tiers::TensorDescription shard = shard_tensor(options_.config, layout, flat.shard_at_home);
  if (options_.plan.shards_on_device) {
    flat.kept_shard = keep(context_.parameter_region, shard.size, shard.purpose);
    return ok();
  }
  return add(flat.shard, layout, {.begin = {}, .count = layout.shard}, std::move(shard), flat.shard_on_disk);
}

Result<void> EngineState::add_gradients(FlatState& flat) {
  const FlatLayout& layout = *flat.layout;
  const TileRange whole{.begin = {}, .count = layout.shard};
  tiers::TensorDescription gradient = gradient_tensor(options_.config, layout);
  if (options_.plan.gradients_on_device) {
    flat.kept_gradient = keep(context_.gradient_region, gradient.size, gradient.purpose);
    return ok();
  }
  PENSTOCK_TRY(add(flat.gradient, layout, whole, std::move(gradient), options_.plan.gradients_on_disk));
  if (options_.plan.shares_memory) return ok();
  return add(flat.incoming_gradient, layout, whole, incoming_gradient_tensor(options_.config, layout), false);
}

Result<void> EngineState::add_tiles(std::uint32_t index, std::uint64_t& tile_number) {
  FlatState& flat = context_.flats[index];
  const MemoryPlan& plan = options_.plan;
  const std::uint64_t shard_begin = (flat.layout->shard * context_.communicator.rank()).value();
  for (const TileRange& range : cut_into_tiles(*flat.layout, plan.tile_elements)) {
    TileState tile{.flat = flat.layout,
                   .number = static_cast<std::uint32_t>(flat.tiles.size()),
                   .range = range,
                   .first_element = (std::uint64_t{index} << 40) + shard_begin + range.begin.value(),
                   .place = place_of_tile(plan, tile_number),
                   .updated_on_device = plan.updated_on_device(tile_number)};
    ++tile_number;
    PENSTOCK_TRY(add_tile(tile));
    flat.tiles.push_back(tile);
  }
  return ok();
}

Result<void> EngineState::add_tile(TileState& tile) {
  tiers::TensorDescription states =
      tile_tensor(options_.config, *tile.flat, tile.range, tile.number, tile.place);
  if (tile.place == TilePlace::device) {
    tile.kept = keep(context_.optimizer_region, states.size, states.purpose);
    return ok();
  }
  return add(tile.tensor, *tile.flat, tile.range, std::move(states), is_on_disk(tile.place));
}

/// Records the plan's figures in the ledger, to compare them with the actual ones.
void EngineState::predict() {
  using tiers::Purpose;
  using tiers::Tier;
  tiers::Ledger& ledger = context_.runtime.ledger();
  const MemoryPlan& plan = options_.plan;
  ledger.predict(Tier::device, Purpose::gathered_flat, plan.device_gathered);
  ledger.predict(Tier::device, Purpose::full_gradient, plan.device_gradients);
  ledger.predict(Tier::device, Purpose::optimizer_tile, plan.device_tiles + plan.update.device_bytes());
  ledger.predict(Tier::device, Purpose::parameter_shard, plan.device_shards);
  ledger.predict(Tier::device, Purpose::gradient_shard, plan.device_accumulators);
  ledger.predict(Tier::device, Purpose::scratch, plan.device_partials + plan.device_collectives);
  ledger.predict(Tier::device, Purpose::checkpoint, plan.checkpoints.device_bytes());
  ledger.predict(Tier::host, Purpose::checkpoint, plan.host_checkpoints);
  ledger.predict(Tier::nvme, Purpose::checkpoint, plan.disk_checkpoints);
  ledger.predict(Tier::host, Purpose::scratch, plan.host_results);
  // With what rounding to whole pages adds.
  ledger.predict(Tier::host, Purpose::staging,
                 plan.host_staging() + (plan.host_allocated() - plan.host_budget));
  ledger.predict(Tier::host, Purpose::parameter_shard, plan.host_shards);
  ledger.predict(Tier::host, Purpose::gradient_shard, plan.host_gradients);
  ledger.predict(Tier::host, Purpose::optimizer_tile, plan.host_tiles);
  ledger.predict(Tier::nvme, Purpose::parameter_shard, plan.disk_shards);
  ledger.predict(Tier::nvme, Purpose::gradient_shard, plan.disk_gradients);
  ledger.predict(Tier::nvme, Purpose::optimizer_tile, plan.disk_tiles);
  if (options_.config.is_durable()) {
    const ByteCount of_shards = plan.swap_committed - plan.disk_tiles;
    ledger.predict(Tier::nvme, Purpose::optimizer_tile, plan.disk_tiles);
    ledger.predict(Tier::nvme, Purpose::parameter_shard, of_shards);
    ledger.predict(Tier::nvme, Purpose::commit, plan.committed_copies * 2);
  }
  // Shards are read ahead for a step that may not come.
  ledger.predict_traffic(Purpose::parameter_shard, plan.disk_shards - plan.home_shards, {});
}

/// The plan's figures are those of its order of use. Where the trainer's takes more, a message says so, and the
/// prediction is from now on what every order takes at most.
void EngineState::predict_every_order() {
  const MemoryPlan& plan = options_.plan;
  tiers::Ledger& ledger = context_.runtime.ledger();
  const auto raise = [&](tiers::Purpose purpose, ByteCount planned, ByteCount most, bool& is_raised) {
    const auto line = ledger.line(tiers::Tier::device, purpose);
    if (is_raised || line.peak <= line.predicted || most <= planned) return;
    is_raised = true;
    ledger.predict(tiers::Tier::device, purpose, most - planned);
    context_.internals.add_message(
        "step " + std::to_string(context_.completed_steps) + ": " + std::string(to_string(purpose)) +
        " took up to " + to_string(line.peak) +
        " of device memory, and the plan of forward, then backward, " + to_string(line.predicted) +
        ": units are used in another order. The report predicts " +
        to_string(line.predicted + most - planned) + ", the most of every order, from now on");
  };
  raise(tiers::Purpose::gathered_flat, plan.device_gathered, plan.device_gathered_max,
        predicts_most_.gathered);
  raise(tiers::Purpose::full_gradient, plan.device_gradients, plan.device_gradients_max,
        predicts_most_.gradients);
}

void EngineState::predict_gather(const FlatState& flat) {
  if (!flat.shard_on_disk || (flat.shard_at_home && !context_.internals.memory_is_limited())) return;
  const ByteCount reads = shard_reads_.gather(padded(flat.layout->shard, options_.config.dtype));
  context_.runtime.ledger().predict_traffic(tiers::Purpose::parameter_shard, reads, {});
}

void EngineState::predict_attempt(std::uint32_t micro_batches) {
  const MemoryPlan& plan = options_.plan;
  tiers::Ledger& ledger = context_.runtime.ledger();
  ByteCount rereads = plan.tile_rereads_max;
  // Then tiles with a home are read ahead too, also by their order of use, and may be evicted before their update.
  if (context_.internals.memory_is_limited()) rereads += plan.home_tiles;
  ledger.predict_traffic(tiers::Purpose::optimizer_tile, rereads, {});
  ledger.predict_traffic(tiers::Purpose::parameter_shard, shard_reads_.end_step(micro_batches), {});
  ledger.predict_traffic(tiers::Purpose::checkpoint, plan.checkpoint_reads_max * micro_batches,
                         plan.checkpoint_writes_max * micro_batches);
  ledger.predict_traffic(tiers::Purpose::gradient_shard, plan.gradient_reads_max * micro_batches,
                         plan.gradient_writes_max * micro_batches);
}

}  // namespace penstock::zero
