#include "zero/engine/offloaded_optimizer.hpp"

#include "zero/engine/block_seal.hpp"
#include "zero/engine/custom_update.hpp"
#include "zero/engine/frozen_shard.hpp"
#include "zero/engine/host_view.hpp"
#include "zero/engine/muon_update.hpp"

#include <algorithm>
#include <atomic>
#include <optional>

namespace penstock::zero {

using cpu_adam::all_states;

cpu_adam::OptimizerTile OffloadedOptimizer::view(const TileState& tile, HostSpan state, HostSpan shard,
                                                 ConstHostSpan gradient) const {
  const cpu_adam::TileLayout layout = layout_of(*tile.flat);
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
          .format = layout.format,
          .first_element = tile.first_element,
          .optimizer = layout.optimizer};
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

Result<HostView> OffloadedOptimizer::host_view(const FlatState& flat, swap::Access access) const {
  DeviceUpdate& device = *options_.device;
  return HostView::of(*options_.runtime, device, flat.shard, flat.kept_shard, device.parameter_piece(),
                      access);
}

Result<HostView> OffloadedOptimizer::host_view(const TileState& tile, swap::Access access) const {
  DeviceUpdate& device = *options_.device;
  return HostView::of(*options_.runtime, device, tile.tensor, tile.kept, device.state_piece(), access);
}

Result<cpu_adam::OptimizerTile> OffloadedOptimizer::piece_of(const TileState& tile, ElementCount first,
                                                             HostView& state, HostView* shard) const {
  const cpu_adam::TileLayout layout = layout_of(*tile.flat);
  const ElementCount count = std::min(options_.device->piece_elements(), tile.range.count - first);
  const ByteCount parameter = size_of(options_.parameter_dtype);
  PENSTOCK_TRY_ASSIGN(const ByteCount before, cpu_adam::tile_bytes(layout, first));
  PENSTOCK_TRY_ASSIGN(const ByteCount bytes, cpu_adam::tile_bytes(layout, count));
  cpu_adam::OptimizerTile piece{.elements = count,
                                .gradient_dtype = options_.gradient_dtype,
                                .parameter_dtype = options_.parameter_dtype,
                                .format = layout.format,
                                .first_element = tile.first_element + first.value(),
                                .optimizer = layout.optimizer};
  PENSTOCK_TRY_ASSIGN(piece.state, state.piece(before, bytes));
  if (shard != nullptr) {
    PENSTOCK_TRY_ASSIGN(piece.parameter, shard->piece(parameter * (tile.range.begin + first).value(),
                                                      parameter * count.value()));
  }
  return piece;
}

Result<void> OffloadedOptimizer::restore(std::span<FlatState> flats, std::uint32_t rank, std::uint64_t step,
                                         const StateSource& source) {
  StateValues values;  // of one tile after the other: new memory would be zeroed by the kernel each time
  for (FlatState& flat : flats) {
    PENSTOCK_TRY_ASSIGN(auto shard, host_view(flat, swap::Access::overwrite));
    if (flat.layout->frozen) {
      PENSTOCK_TRY(restore_frozen(options_, flat, rank, source, shard));
    } else {
      for (TileState& tile : flat.tiles)
        PENSTOCK_TRY(restore_tile(flat, tile, rank, step, source, shard, values));
    }
    stamp(flat, step);  // before the lease ends: the shard is stored then, with its step
  }
  return internals().finish_stores();
}

Result<void> OffloadedOptimizer::restore_tile(const FlatState& flat, TileState& tile, std::uint32_t rank,
                                              std::uint64_t step, const StateSource& source, HostView& shard,
                                              StateValues& values) {
  options_.runtime->wait_for_stores(options_.tile_stores_max);
  PENSTOCK_TRY_ASSIGN(auto state, host_view(tile, swap::Access::overwrite));
  for (ElementCount first; first < tile.range.count;) {
    PENSTOCK_TRY_ASSIGN(const auto piece, piece_of(tile, first, state, &shard));
    const ElementCount begin = flat.layout->shard * rank + tile.range.begin + first;
    for (std::size_t kind = 0; kind < all_states.size(); ++kind) {
      values[kind].clear();
      if (!cpu_adam::keeps(layout_of(*flat.layout).optimizer, all_states[kind])) continue;
      values[kind].assign(piece.elements.value(), 0.0f);
      PENSTOCK_TRY(source(*flat.layout, all_states[kind], begin, values[kind]));
    }
    const cpu_adam::TileStates states{values[0], values[1], values[2], !options_.checks_finite};
    PENSTOCK_TRY(cpu_adam::restore_tile(states, piece, options_.workers));
    PENSTOCK_TRY(state.write_back());
    PENSTOCK_TRY(shard.write_back());
    first += piece.elements;
  }
  if (tile.place == TilePlace::disk) internals().blocks(tile.tensor).seal_all(state.leased(), step);
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

std::size_t OffloadedOptimizer::tiles_before(const FlatState& flat, std::uint64_t step) const {
  return static_cast<std::size_t>(std::count_if(flat.tiles.begin(), flat.tiles.end(),
                                                [&](const TileState& tile) { return !is_at(tile, step); }));
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
      run(flat, tile, view(tile, state, flat.open_shard.bytes(), flat.open_gradient.bytes()), step,
          {.workers = options_.workers,
           .observer = has_checksums(tile) ? &seal : nullptr,
           .nontemporal_parameter = !options_.shards_on_disk}));
  if (outcome.first_rejected_block) return internals().corrupted(tile.tensor, *outcome.first_rejected_block);
  return outcome.first_non_finite_block ? check_finite(tile, *outcome.first_non_finite_block) : ok();
}

Result<cpu_adam::UpdateOutcome> OffloadedOptimizer::run(const FlatState& flat, const TileState& tile,
                                                        const cpu_adam::OptimizerTile& view, const Step& step,
                                                        const cpu_adam::UpdateExecution& execution) const {
  if (cpu_adam::is_custom(options_.layout.optimizer))
    return options_.custom->update_tile(*flat.layout, tile, view, step, execution);
  if (flat.layout->has_matrices())
    return options_.muon->update_tile(*flat.layout, tile, view, step, execution);
  return cpu_adam::optimizer_step(step.configs[flat.layout->group], step.number, step.gradient_factor, view,
                                  execution);
}

Result<void> OffloadedOptimizer::check_finite(const TileState& tile, std::uint64_t block) const {
  if (!options_.checks_finite) return ok();
  const ElementCount first = tile.range.begin + cpu_adam::block_elements * block;
  return Error(ErrorCode::non_finite, "OffloadedOptimizer")
      .reason("a master weight or a moment has become non-finite")
      .object(options_.names.of(*tile.flat, first, cpu_adam::block_elements) + " (" + tile.name() +
              ", block " + std::to_string(block) + ")")
      .advice("continue from the last commit or checkpoint with a lower learning rate");
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
  for (FlatState& flat : flats) {
    if (flat.layout->frozen) {
      PENSTOCK_TRY(visit_frozen(options_, flat, visit));
      continue;
    }
    PENSTOCK_TRY(check_same_step(flat));
    std::optional<HostView> shard;  // where the parameter is a part of the master
    if (reads_parameters()) {
      PENSTOCK_TRY_ASSIGN(shard, host_view(flat, swap::Access::read));
    }
    for (const TileState& tile : flat.tiles) {
      PENSTOCK_TRY_ASSIGN(auto state, host_view(tile, swap::Access::read));
      for (ElementCount first; first < tile.range.count;) {
        PENSTOCK_TRY_ASSIGN(const auto piece, piece_of(tile, first, state, shard ? &*shard : nullptr));
        PENSTOCK_TRY(visit_blocks(flat, tile, first, piece, kinds, visit));
        first += piece.elements;
      }
    }
  }
  return ok();
}

/// Of one piece, which begins at element `begin` of the tile.
Result<void> OffloadedOptimizer::visit_blocks(const FlatState& flat, const TileState& tile,
                                              ElementCount begin, const cpu_adam::OptimizerTile& piece,
                                              std::span<const cpu_adam::StateKind> kinds,
                                              const StateVisitor& visit) const {
  const cpu_adam::TileLayout layout = layout_of(*flat.layout);
  PENSTOCK_TRY_ASSIGN(const ByteCount block_bytes, cpu_adam::block_bytes(layout, cpu_adam::block_elements));
  const tiers::BlockTable* const blocks = has_checksums(tile) ? &internals().blocks(tile.tensor) : nullptr;
  std::vector<float> values;
  for (ElementCount first; first < piece.elements; first += cpu_adam::block_elements) {
    const std::size_t block = (begin + first).value() / cpu_adam::block_elements.value();
    const ByteCount at = block_bytes * (first.value() / cpu_adam::block_elements.value());
    const ByteCount bytes = std::min(block_bytes, piece.state.size() - at);
    if (blocks != nullptr && !blocks->verify(block, piece.state.subspan(at, bytes))) {
      return internals().corrupted(tile.tensor, block);
    }
    values.resize(std::min(cpu_adam::block_elements, piece.elements - first).value());
    for (const cpu_adam::StateKind kind : kinds) {
      if (!cpu_adam::keeps(layout.optimizer, kind)) continue;
      PENSTOCK_TRY(cpu_adam::read_states(piece, kind, first, values));
      PENSTOCK_TRY(visit(flat, kind, tile.range.begin + begin + first, values));
    }
  }
  return ok();
}

}  // namespace penstock::zero
