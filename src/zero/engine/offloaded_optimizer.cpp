#include "zero/engine/offloaded_optimizer.hpp"

#include "zero/engine/block_seal.hpp"

#include <algorithm>
#include <atomic>

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
  swap::Runtime& runtime = *options_.runtime;
  const std::uint64_t wanted = internals().blocks(flat.shard).step();
  for (const TileState& tile : flat.tiles) {
    const std::uint64_t got = internals().blocks(tile.tensor).step();
    if (got == wanted) continue;
    return Error(ErrorCode::corrupted, "OffloadedOptimizer")
        .reason("the parameters and the optimizer state are from different steps")
        .object(runtime.name(tile.tensor))
        .wanted("step " + std::to_string(wanted) + ", as " + runtime.name(flat.shard))
        .got("step " + std::to_string(got));
  }
  return ok();
}

Result<void> OffloadedOptimizer::restore(std::span<FlatState> flats, std::uint32_t rank, std::uint64_t step,
                                         const StateSource& source) {
  swap::Runtime& runtime = *options_.runtime;
  for (FlatState& flat : flats) {
    PENSTOCK_TRY_ASSIGN(auto shard,
                        runtime.acquire(flat.shard, swap::Access::overwrite, swap::Use::unrecorded));
    for (TileState& tile : flat.tiles) {
      PENSTOCK_TRY(restore_tile(flat, tile, rank, step, source, shard.bytes()));
    }
    internals().blocks(flat.shard).stamp(step);
  }
  return runtime.flush();
}

Result<void> OffloadedOptimizer::restore_tile(const FlatState& flat, TileState& tile, std::uint32_t rank,
                                              std::uint64_t step, const StateSource& source, HostSpan shard) {
  swap::Runtime& runtime = *options_.runtime;
  runtime.wait_for_stores(options_.tile_stores_max);
  PENSTOCK_TRY_ASSIGN(auto lease,
                      runtime.acquire(tile.tensor, swap::Access::overwrite, swap::Use::unrecorded));
  const cpu_adam::AdamTile whole = view(tile, lease.bytes(), shard, {});
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
  if (tile.on_disk) internals().blocks(tile.tensor).seal_all(lease.bytes(), step);
  internals().blocks(tile.tensor).stamp(step);
  return ok();
}

bool OffloadedOptimizer::is_at(const TileState& tile, std::uint64_t step) const {
  return internals().blocks(tile.tensor).step() == step;
}

bool OffloadedOptimizer::is_at(const FlatState& flat, std::uint64_t step) const {
  return std::all_of(flat.tiles.begin(), flat.tiles.end(),
                     [&](const TileState& tile) { return is_at(tile, step); });
}

void OffloadedOptimizer::advance(const FlatState& flat, std::uint64_t step) const {
  for (const TileState& tile : flat.tiles) internals().blocks(tile.tensor).stamp(step);
  internals().blocks(flat.shard).stamp(step);
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
  internals().blocks(tile.tensor).stamp(step.number);
  return ok();
}

Error OffloadedOptimizer::non_finite(const TileState& tile, std::uint64_t block) const {
  return Error(ErrorCode::non_finite, "OffloadedOptimizer")
      .reason("a master weight or a second moment has become non-finite")
      .object(options_.runtime->name(tile.tensor) + ", block " + std::to_string(block))
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
  if (has_checksums(tile)) {
    options_.workers->parallel_blocks(blocks.block_count(), [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) blocks.seal(i, blocks.block(state, i), step.number);
    });
  }
  blocks.stamp(step.number);
}

Result<void> OffloadedOptimizer::visit_states(std::span<FlatState> flats,
                                              std::span<const cpu_adam::StateKind> kinds,
                                              const StateVisitor& visit) {
  swap::Runtime& runtime = *options_.runtime;
  std::vector<float> values;
  for (FlatState& flat : flats) {
    PENSTOCK_TRY(check_same_step(flat));
    swap::Lease shard;  // where the parameter is a part of the master
    if (reads_parameters()) {
      PENSTOCK_TRY_ASSIGN(auto granted,
                          runtime.acquire(flat.shard, swap::Access::read, swap::Use::unrecorded));
      shard = std::move(granted);
    }
    for (TileState& tile : flat.tiles) {
      PENSTOCK_TRY_ASSIGN(auto lease,
                          runtime.acquire(tile.tensor, swap::Access::read, swap::Use::unrecorded));
      const tiers::BlockTable& blocks = internals().blocks(tile.tensor);
      const bool check = has_checksums(tile);
      for (std::size_t i = 0; i < blocks.block_count(); ++i) {
        if (check && !blocks.verify(i, blocks.block(ConstHostSpan(lease.bytes()), i))) {
          return internals().corrupted(tile.tensor, i);
        }
        const ElementCount first = cpu_adam::block_elements * i;
        values.resize(std::min(cpu_adam::block_elements, tile.range.count - first).value());
        for (const cpu_adam::StateKind kind : kinds) {
          PENSTOCK_TRY(cpu_adam::read_states(
              view(tile, lease.bytes(), shard.held() ? shard.bytes() : HostSpan(), {}), kind, first, values));
          PENSTOCK_TRY(visit(flat, kind, tile.range.begin + first, values));
        }
      }
    }
  }
  return ok();
}

}  // namespace penstock::zero
