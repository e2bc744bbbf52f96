#include "zero/layout/engine_tensors.hpp"

namespace penstock::zero {

using tiers::Purpose;

namespace {

ByteCount shard_bytes(const FlatLayout& flat, DType dtype) {
  return size_of(dtype) * flat.shard.value();
}

bool seals_in_pass(const Config& config) {
  return config.penstock.integrity == Integrity::off;
}

}  // namespace

tiers::TensorDescription shard_tensor(const Config& config, const FlatLayout& flat, bool at_home) {
  return {.name = flat.name + of_parameters,
          .purpose = Purpose::parameter_shard,
          .size = shard_bytes(flat, config.dtype),
          .write_behind = true,
          .home_in_memory = at_home,
          .sealed_in_pass = seals_in_pass(config)};
}

tiers::TensorDescription gradient_tensor(const Config& config, const FlatLayout& flat) {
  return {.name = flat.name + of_gradients,
          .purpose = Purpose::gradient_shard,
          .size = shard_bytes(flat, config.grad_accum_dtype),
          .sealed_in_pass = seals_in_pass(config)};
}

tiers::TensorDescription incoming_gradient_tensor(const Config& config, const FlatLayout& flat) {
  return {.name = flat.name + " incoming gradient",
          .purpose = Purpose::staging,
          .size = shard_bytes(flat, config.dtype),
          .transient = true};
}

tiers::TensorDescription checkpoint_tensor(std::uint32_t number, ByteCount size, bool on_disk) {
  return {.name = "checkpoint " + std::to_string(number),
          .purpose = Purpose::checkpoint,
          .size = size,
          .write_behind = on_disk};
}

TilePlace place_of_tile(const MemoryPlan& plan, std::uint64_t tile) {
  if (plan.tile_kept(tile)) return TilePlace::device;
  if (!plan.tiles_on_disk) return TilePlace::memory;
  return plan.tile_at_home(tile) ? TilePlace::home : TilePlace::disk;
}

tiers::TensorDescription tile_tensor(const Config& config, const FlatLayout& flat, TileRange range,
                                     std::uint32_t number, TilePlace place) {
  const cpu_adam::TileLayout format = tile_layout(config, flat);
  return {.name = tile_name(flat, number),
          .purpose = Purpose::optimizer_tile,
          .size = *cpu_adam::tile_bytes(format, range.count),
          .block = *cpu_adam::block_bytes(format, cpu_adam::block_elements),
          .write_behind = true,
          .retain = place != TilePlace::disk,
          .home_in_memory = place == TilePlace::home,
          .sealed_in_pass = place != TilePlace::home || seals_in_pass(config)};
}

std::string tile_name(const FlatLayout& flat, std::uint32_t number) {
  return flat.name + " optimizer tile " + std::to_string(number);
}

}  // namespace penstock::zero
