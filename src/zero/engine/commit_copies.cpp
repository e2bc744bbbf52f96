#include "zero/engine/commit_copies.hpp"

#include "zero/layout/commit_parts.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <string>
#include <utility>

namespace penstock::zero {

namespace {

bool commits_shard(const EngineContext& context, const FlatState& flat) {
  return !flat.shard_on_disk && commits_parameters(context.config, *flat.layout);
}

/// Whether any committed state is on the device.
bool keeps_on_device(const EngineContext& context) {
  return std::any_of(context.flats.begin(), context.flats.end(), [&](const FlatState& flat) {
    const auto is_kept = [](const TileState& tile) { return !tile.kept.empty(); };
    return (commits_shard(context, flat) && !flat.kept_shard.empty()) ||
           std::any_of(flat.tiles.begin(), flat.tiles.end(), is_kept);
  });
}

}  // namespace

Result<std::unique_ptr<CommitCopies>> CommitCopies::open(EngineContext& context, Options options) {
  const std::uint32_t engine = options.engine;
  // The last commit stays while the next one is written.
  swap::RuntimeOptions with{
      .host_budget = keeps_on_device(context) ? std::min(options.size, staging_max) : ByteCount(),
      .paths = std::move(options.paths),
      .swap_need = {.total = options.size * 2, .tensor_max = commit_part_max * 2},
      .pinned = std::move(options.pinned),
      .eviction = swap::Eviction::lru};
  PENSTOCK_TRY_ASSIGN(auto side, SideRuntime::create(context, std::move(with)));
  std::unique_ptr<CommitCopies> made(new CommitCopies(context, std::move(side)));
  for (std::uint32_t f = 0; f < context.flats.size(); ++f) {
    const FlatState& flat = context.flats[f];
    if (commits_shard(context, flat)) PENSTOCK_TRY(made->add_shard(f, engine));
    for (std::uint32_t tile = 0; tile < flat.tiles.size(); ++tile) {
      if (!is_on_disk(flat.tiles[tile].place)) PENSTOCK_TRY(made->add_tile(f, tile, engine));
    }
  }
  return made;
}

Result<void> CommitCopies::add_shard(std::uint32_t flat, std::uint32_t engine) {
  const FlatLayout& layout = *context_.flats[flat].layout;
  const ByteCount element = size_of(context_.config.dtype);
  for (const TileRange& range : commit_parts(layout.shard, parameter_block(context_.config.dtype))) {
    const Part part{.flat = flat,
                    .tile = of_shard,
                    .range = range,
                    .begin = element * range.begin.value(),
                    .on_device = !context_.flats[flat].kept_shard.empty()};
    PENSTOCK_TRY(add(part, range.begin,
                     {.name = layout.name + " parameter shard, committed",
                      .key = {.owner = engine, .role = tiers::Purpose::parameter_shard},
                      .size = element * range.count.value()}));
  }
  return ok();
}

Result<void> CommitCopies::add_tile(std::uint32_t flat, std::uint32_t tile, std::uint32_t engine) {
  const TileState& state = context_.flats[flat].tiles[tile];
  const cpu_adam::TileLayout layout = tile_layout(context_.config, *state.flat);
  PENSTOCK_TRY_ASSIGN(const ByteCount block, cpu_adam::block_bytes(layout, cpu_adam::block_elements));
  for (const TileRange& range : commit_parts(state.range.count, block)) {
    PENSTOCK_TRY_ASSIGN(const ByteCount begin, cpu_adam::tile_bytes(layout, range.begin));
    PENSTOCK_TRY_ASSIGN(const ByteCount size, cpu_adam::tile_bytes(layout, range.count));
    const Part part{
        .flat = flat, .tile = tile, .range = range, .begin = begin, .on_device = !state.kept.empty()};
    PENSTOCK_TRY(add(part, state.range.begin + range.begin,
                     {.name = state.name() + ", committed",
                      .key = {.owner = engine, .role = tiers::Purpose::optimizer_tile},
                      .size = size,
                      .block = block}));
  }
  return ok();
}

/// `first`: in the shard.
Result<void> CommitCopies::add(Part part, ElementCount first, tiers::TensorDescription description) {
  const FlatLayout& layout = *context_.flats[part.flat].layout;
  description.key.unit = layout.unit;
  description.key.group = layout.group;
  description.key.first = (layout.shard * context_.communicator.rank() + first).value();
  description.key.count = part.range.count.value();
  description.purpose = tiers::Purpose::commit;
  description.write_behind = true;
  description.retain = false;
  description.stored_from_outside = !part.on_device;
  PENSTOCK_TRY_ASSIGN(part.tensor, runtime().add(std::move(description), /*on_disk=*/true));
  parts_.push_back(part);
  return ok();
}

/// Where the part is now: Engine::unpark() may have moved it.
MemoryRange CommitCopies::range_of(const Part& part) const {
  const FlatState& flat = context_.flats[part.flat];
  const bool shard = part.tile == of_shard;
  const ByteCount size = runtime().describe(part.tensor).size;
  const std::string name = runtime().name(part.tensor);
  if (part.on_device) {
    const DeviceSpan kept = shard ? flat.kept_shard : flat.tiles[part.tile].kept;
    return {name, kept.subspan(part.begin, size), {}};
  }
  const HostSpan host = context_.internals.kept_range(shard ? flat.shard : flat.tiles[part.tile].tensor);
  return {name, {}, host.subspan(part.begin, size)};
}

void CommitCopies::begin() {
  PENSTOCK_CHECK(!copying_);
  const swap::RuntimeInternals internals(runtime());
  std::vector<DeviceCopy> on_device;
  for (Part& part : parts_) {
    part.step = step_of(part);
    if (part.on_device) {
      on_device.push_back({range_of(part), part.tensor});
    } else {
      internals.store_from(part.tensor, range_of(part).in_host);
    }
  }
  if (!on_device.empty()) start(std::move(on_device));
}

void CommitCopies::start(std::vector<DeviceCopy> copies) {
  copying_ = true;
  stop_ = false;
  device_error_.reset();
  swap::Move move;
  move.then(make_commit_hop(context_, std::move(copies), runtime(), stop_));
  move.on_event = [this](swap::HopState state, const Result<void>& result) {
    if (state != swap::HopState::done) return;
    if (!result) device_error_ = result.error();
    copying_ = false;
    swap::RuntimeInternals(runtime()).wake();
  };
  context_.internals.start(std::move(move));
}

Result<void> CommitCopies::wait() {
  PENSTOCK_TRY(swap::RuntimeInternals(runtime()).wait_until([this] { return !copying_; }));
  if (device_error_) return *device_error_;
  return runtime().flush();
}

Result<void> CommitCopies::finish() {
  auto finished = wait();
  if (!finished) give_up();
  return finished;
}

void CommitCopies::give_up() {
  stop_ = true;
  context_.wake();
  swap::RuntimeInternals(runtime()).wait_ignoring_stores([this] { return !copying_; });
  for (const Part& part : parts_) (void)runtime().discard(part.tensor);
  runtime().wait_for_stores(0);
  (void)runtime().check_stores();  // of what was discarded
}

std::vector<CommitCopies::Copy> CommitCopies::copies() const {
  std::vector<Copy> all;
  for (const Part& part : parts_) all.push_back({part.tensor, part.step});
  return all;
}

std::uint64_t CommitCopies::step_of(const Part& part) const {
  const FlatState& flat = context_.flats[part.flat];
  const bool shard = part.tile == of_shard;
  if (part.on_device) return shard ? flat.kept_step : flat.tiles[part.tile].kept_step;
  return context_.internals.blocks(shard ? flat.shard : flat.tiles[part.tile].tensor).step();
}

}  // namespace penstock::zero
