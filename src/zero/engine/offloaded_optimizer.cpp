#include "zero/engine/offloaded_optimizer.hpp"

#include "zero/engine/block_seal.hpp"
#include "zero/engine/host_view.hpp"

#include <algorithm>
#include <atomic>
#include <optional>

namespace penstock::zero {

using cpu_adam::all_states;

namespace {

// Bounds the memory that restore() takes, and gives each of 16 workers a block.
constexpr ElementCount restored_at_once = cpu_adam::block_elements * 16;

/// Elements [first, first + count) of a tile; `first` is at a block's boundary.
Result<cpu_adam::AdamTile> part_of(cpu_adam::AdamTile tile, ElementCount first, ElementCount count) {
  PENSTOCK_TRY_ASSIGN(const ByteCount before, cpu_adam::tile_bytes(tile.format, first));
  PENSTOCK_TRY_ASSIGN(const ByteCount bytes, cpu_adam::tile_bytes(tile.format, count));
  const ByteCount element = size_of(tile.parameter_dtype);
  tile.state = tile.state.subspan(before, bytes);
  tile.parameter = tile.parameter.subspan(element * first.value(), element * count.value());
  tile.elements = count;
  tile.first_element += first.value();
  return tile;
}

}  // namespace

cpu_adam::AdamTile OffloadedOptimizer::view(const TileState& tile, HostSpan state, HostSpan shard,
                                            ConstHostSpan gradient) const {
  const auto part = [&](auto span, DType dtype) {
    const ByteCount element = size_of(dtype);
    return span.subspan(element * tile.range.begin.value(), element * tile.range.count.value());
  };
  return {.state = state,
          .gradient = gradient.empty() ? gradient : part(gradient, options_.gradient_dtype),
          .parameter = shard.empty() ? shard : part(shard, options_.parameter_dtype),
          .elements = tile.range.count,
          .gradient_dtype = options_.gradient_dtype,
          .parameter_dtype = options_.parameter_dtype,
          .format = options_.format,
          .first_element = tile.first_element};
}

Result<void> OffloadedOptimizer::check_same_step(const FlatState& flat) const {
  if (!reads_parameters()) return ok();
  const bool is_kept = !flat.kept_shard.empty();
  const std::uint64_t wanted = is_kept ? flat.kept_step : internals().blocks(flat.shard).step();
  for (const TileState& tile : flat.tiles) {
    const std::uint64_t got = step_of(tile);
    if (got == wanted) continue;
    return Error(ErrorCode::corrupted, "OffloadedOptimizer")
        .reason("the parameters and the optimizer state are from different steps")
        .object(tile.name())
        .wanted("step " + std::to_string(wanted) + ", as " + flat.layout->name + " parameter shard")
        .got("step " + std::to_string(got));
  }
  return ok();
}

Result<void> OffloadedOptimizer::restore(std::span<FlatState> flats, std::uint32_t rank, std::uint64_t step,
                                         const StateSource& source) {
  swap::Runtime& runtime = *options_.runtime;
  for (FlatState& flat : flats) {
    PENSTOCK_TRY_ASSIGN(auto shard, HostView::of(runtime, *options_.device, flat.shard, flat.kept_shard,
                                                 swap::Access::overwrite));
    for (TileState& tile : flat.tiles) {
      PENSTOCK_TRY(restore_tile(flat, tile, rank, step, source, shard.bytes()));
    }
    PENSTOCK_TRY(shard.write_back());
    stamp(flat, step);
  }
  return runtime.flush();
}

Result<void> OffloadedOptimizer::restore_tile(const FlatState& flat, TileState& tile, std::uint32_t rank,
                                              std::uint64_t step, const StateSource& source, HostSpan shard) {
  swap::Runtime& runtime = *options_.runtime;
  runtime.wait_for_stores(options_.tile_stores_max);
  PENSTOCK_TRY_ASSIGN(
      auto state, HostView::of(runtime, *options_.device, tile.tensor, tile.kept, swap::Access::overwrite));
  const cpu_adam::AdamTile whole = view(tile, state.bytes(), shard, {});
  std::array<std::vector<float>, all_states.size()> states;
  for (ElementCount first; first < tile.range.count; first += restored_at_once) {
    const ElementCount count = std::min(restored_at_once, tile.range.count - first);
    const ElementCount begin = flat.layout->shard * rank + tile.range.begin + first;
    for (std::size_t kind = 0; kind < all_states.size(); ++kind) {
      states[kind].assign(count.value(), 0.0f);
      PENSTOCK_TRY(source(*flat.layout, all_states[kind], begin, states[kind]));
    }
    PENSTOCK_TRY_ASSIGN(const auto part, part_of(whole, first, count));
    PENSTOCK_TRY(cpu_adam::restore_tile({states[0], states[1], states[2]}, part, options_.workers));
  }
  if (tile.on_disk) internals().blocks(tile.tensor).seal_all(state.bytes(), step);
  PENSTOCK_TRY(state.write_back());
  stamp(tile, step);
  return ok();
}

std::uint64_t OffloadedOptimizer::step_of(const TileState& tile) const {
  return tile.kept.empty() ? internals().blocks(tile.tensor).step() : tile.kept_step;
}

void OffloadedOptimizer::stamp(TileState& tile, std::uint64_t step) const {
  if (tile.kept.empty()) {
    internals().blocks(tile.tensor).stamp(step);
  } else {
    tile.kept_step = step;
  }
}

void OffloadedOptimizer::stamp(FlatState& flat, std::uint64_t step) const {
  if (flat.kept_shard.empty()) {
    internals().blocks(flat.shard).stamp(step);
  } else {
    flat.kept_step = step;
  }
}

bool OffloadedOptimizer::is_at(const TileState& tile, std::uint64_t step) const {
  return step_of(tile) == step;
}

bool OffloadedOptimizer::is_at(const FlatState& flat, std::uint64_t step) const {
  return std::all_of(flat.tiles.begin(), flat.tiles.end(),
                     [&](const TileState& tile) { return is_at(tile, step); });
}

void OffloadedOptimizer::advance(FlatState& flat, std::uint64_t step) const {
  for (TileState& tile : flat.tiles) stamp(tile, step);
  stamp(flat, step);
}

Result<void> OffloadedOptimizer::update_tile(const FlatState& flat, const TileState& tile, HostSpan state,
                                             const Step& step) const {
  BlockSeal seal(internals().blocks(tile.tensor), step.number);
  PENSTOCK_TRY_ASSIGN(
      const auto outcome,
      cpu_adam::adam_step(step.configs[flat.layout->group], step.number, step.gradient_factor,
                          view(tile, state, flat.open_shard.bytes(), flat.open_gradient.bytes()),
                          {.workers = options_.workers,
                           .observer = has_checksums(tile) ? &seal : nullptr,
                           .nontemporal_parameter = !options_.shards_on_disk}));
  if (outcome.first_rejected_block) return internals().corrupted(tile.tensor, *outcome.first_rejected_block);
  if (outcome.first_non_finite_block) return non_finite(tile, *outcome.first_non_finite_block);
  return ok();
}

Error OffloadedOptimizer::non_finite(const TileState& tile, std::uint64_t block) const {
  return Error(ErrorCode::non_finite, "OffloadedOptimizer")
      .reason("a master weight or a second moment has become non-finite")
      .object(tile.name() + ", block " + std::to_string(block))
      .advice("lower the learning rate, or clip gradients");
}

Result<void> OffloadedOptimizer::verify(const TileState& tile, ConstHostSpan state) const {
  if (!has_checksums(tile)) return ok();
  const tiers::BlockTable& blocks = internals().blocks(tile.tensor);
  std::atomic<std::size_t> first_mismatch{blocks.block_count()};
  options_.workers->parallel_blocks(blocks.block_count(), [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      if (blocks.verify(i, blocks.block(state, i))) continue;
      std::size_t known = first_mismatch;
      while (i < known && !first_mismatch.compare_exchange_weak(known, i)) {
      }
    }
  });
  if (first_mismatch == blocks.block_count()) return ok();
  return internals().corrupted(tile.tensor, first_mismatch);
}

void OffloadedOptimizer::seal(const TileState& tile, ConstHostSpan state, const Step& step) const {
  tiers::BlockTable& blocks = internals().blocks(tile.tensor);
  options_.workers->parallel_blocks(blocks.block_count(), [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) blocks.seal(i, blocks.block(state, i), step.number);
  });
}

Result<void> OffloadedOptimizer::visit_states(std::span<FlatState> flats,
                                              std::span<const cpu_adam::StateKind> kinds,
                                              const StateVisitor& visit) {
  swap::Runtime& runtime = *options_.runtime;
  std::vector<float> values;
  for (FlatState& flat : flats) {
    PENSTOCK_TRY(check_same_step(flat));
    std::optional<HostView> shard;  // where the parameter is a part of the master
    if (reads_parameters()) {
      PENSTOCK_TRY_ASSIGN(
          shard, HostView::of(runtime, *options_.device, flat.shard, flat.kept_shard, swap::Access::read));
    }
    for (const TileState& tile : flat.tiles) {
      PENSTOCK_TRY_ASSIGN(
          auto state, HostView::of(runtime, *options_.device, tile.tensor, tile.kept, swap::Access::read));
      const cpu_adam::AdamTile whole = view(tile, state.bytes(), shard ? shard->bytes() : HostSpan(), {});
      const tiers::BlockTable* const blocks =
          has_checksums(tile) ? &internals().blocks(tile.tensor) : nullptr;
      for (ElementCount first; first < tile.range.count; first += cpu_adam::block_elements) {
        const std::size_t block = first.value() / cpu_adam::block_elements.value();
        if (blocks != nullptr && !blocks->verify(block, blocks->block(ConstHostSpan(state.bytes()), block))) {
          return internals().corrupted(tile.tensor, block);
        }
        values.resize(std::min(cpu_adam::block_elements, tile.range.count - first).value());
        for (const cpu_adam::StateKind kind : kinds) {
          PENSTOCK_TRY(cpu_adam::read_states(whole, kind, first, values));
          PENSTOCK_TRY(visit(flat, kind, tile.range.begin + first, values));
        }
      }
    }
  }
  return ok();
}

}  // namespace penstock::zero
