#include "zero/engine/commit_copies.hpp"

#include "zero/layout/commit_parts.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace penstock::zero {

namespace {

bool is_kept_in_memory(const FlatState& flat) {
  return !flat.shard_on_disk;
}

}  // namespace

Result<std::unique_ptr<CommitCopies>> CommitCopies::open(EngineContext& context, Options options) {
  const std::uint32_t engine = options.engine;
  // The last commit stays while the next one is written.
  swap::RuntimeOptions with{.host_budget = std::min(options.size, staging_max),
                            .paths = std::move(options.paths),
                            .swap_need = {.total = options.size * 2, .tensor_max = commit_part_max * 2},
                            .pinned = std::move(options.pinned),
                            .eviction = swap::Eviction::lru};
  PENSTOCK_TRY_ASSIGN(auto side, SideRuntime::create(context, std::move(with)));
  std::unique_ptr<CommitCopies> made(new CommitCopies(std::move(side)));
  for (std::uint32_t f = 0; f < context.flats.size(); ++f) {
    const FlatState& flat = context.flats[f];
    if (commits_parameters(context.config, *flat.layout) && is_kept_in_memory(flat))
      PENSTOCK_TRY(made->add_shard(context, f, engine));
    for (std::uint32_t tile = 0; tile < flat.tiles.size(); ++tile) {
      if (!flat.tiles[tile].on_disk) PENSTOCK_TRY(made->add_tile(context, f, tile, engine));
    }
  }
  return made;
}

Result<void> CommitCopies::add_shard(const EngineContext& context, std::uint32_t flat, std::uint32_t engine) {
  const FlatLayout& layout = *context.flats[flat].layout;
  const ByteCount element = size_of(context.config.dtype);
  for (const TileRange& range : commit_parts(layout.shard, parameter_block(context.config.dtype))) {
    const Part part{.flat = flat, .tile = of_shard, .range = range, .begin = element * range.begin.value()};
    PENSTOCK_TRY(add(context, part, range.begin,
                     {.name = layout.name + " parameter shard, committed",
                      .key = {.owner = engine, .role = tiers::Purpose::parameter_shard},
                      .size = element * range.count.value()}));
  }
  return ok();
}

Result<void> CommitCopies::add_tile(const EngineContext& context, std::uint32_t flat, std::uint32_t tile,
                                    std::uint32_t engine) {
  const TileState& state = context.flats[flat].tiles[tile];
  const cpu_adam::TileLayout layout = tile_layout(context.config, *state.flat);
  PENSTOCK_TRY_ASSIGN(const ByteCount block, cpu_adam::block_bytes(layout, cpu_adam::block_elements));
  for (const TileRange& range : commit_parts(state.range.count, block)) {
    PENSTOCK_TRY_ASSIGN(const ByteCount begin, cpu_adam::tile_bytes(layout, range.begin));
    PENSTOCK_TRY_ASSIGN(const ByteCount size, cpu_adam::tile_bytes(layout, range.count));
    const Part part{.flat = flat, .tile = tile, .range = range, .begin = begin};
    PENSTOCK_TRY(add(context, part, state.range.begin + range.begin,
                     {.name = state.name() + ", committed",
                      .key = {.owner = engine, .role = tiers::Purpose::optimizer_tile},
                      .size = size,
                      .block = block}));
  }
  return ok();
}

/// `first`: in the shard.
Result<void> CommitCopies::add(const EngineContext& context, Part part, ElementCount first,
                               tiers::TensorDescription description) {
  const FlatLayout& layout = *context.flats[part.flat].layout;
  description.key.unit = layout.unit;
  description.key.group = layout.group;
  description.key.first = (layout.shard * context.communicator.rank() + first).value();
  description.key.count = part.range.count.value();
  description.purpose = tiers::Purpose::commit;
  description.write_behind = true;
  description.retain = false;
  PENSTOCK_TRY_ASSIGN(part.tensor, runtime().add(std::move(description), /*on_disk=*/true));
  parts_.push_back(part);
  return ok();
}

/// Where the part is now: Engine::unpark() may have moved it.
MemoryRange CommitCopies::range_of(const EngineContext& context, const Part& part) const {
  const FlatState& flat = context.flats[part.flat];
  const bool shard = part.tile == of_shard;
  const DeviceSpan kept = shard ? flat.kept_shard : flat.tiles[part.tile].kept;
  const ByteCount size = runtime().describe(part.tensor).size;
  const std::string name = runtime().name(part.tensor);
  if (!kept.empty()) return {name, kept.subspan(part.begin, size), {}};
  const HostSpan host = context.internals.kept_range(shard ? flat.shard : flat.tiles[part.tile].tensor);
  return {name, {}, host.subspan(part.begin, size)};
}

Result<void> CommitCopies::copy(EngineContext& context) {
  for (const Part& part : parts_) {
    PENSTOCK_TRY_ASSIGN(auto lease, runtime().acquire(part.tensor, swap::Access::overwrite));
    PENSTOCK_TRY(copy_out(context, range_of(context, part), std::move(lease)));
  }
  return runtime().sync();
}

std::vector<CommitCopies::Copy> CommitCopies::copies(const EngineContext& context) const {
  std::vector<Copy> all;
  const auto step_of = [&](tiers::TensorId tensor, DeviceSpan kept, std::uint64_t kept_step) {
    return kept.empty() ? context.internals.blocks(tensor).step() : kept_step;
  };
  for (const Part& part : parts_) {
    const FlatState& flat = context.flats[part.flat];
    if (part.tile == of_shard) {
      all.push_back({part.tensor, step_of(flat.shard, flat.kept_shard, flat.kept_step)});
    } else {
      const TileState& tile = flat.tiles[part.tile];
      all.push_back({part.tensor, step_of(tile.tensor, tile.kept, tile.kept_step)});
    }
  }
  return all;
}

}  // namespace penstock::zero
