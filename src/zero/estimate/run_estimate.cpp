#include "base/number_text.hpp"
#include "zero/layout/host_staging.hpp"
#include "zero/layout/padded.hpp"
#include "zero/layout/tiles.hpp"
#include "zero/layout/update_plan.hpp"
#include "zero/layout/update_slot.hpp"

#include "zero/estimate/estimate.hpp"

#include <algorithm>
#include <cmath>

namespace penstock::zero {

namespace {

using tiers::Purpose;
using tiers::Tier;

/// Flats are padded to ranks times this.
constexpr std::uint64_t shard_multiple = 128;

/// What is not offloaded stays on the device, but the parameters only if the optimizer does, which updates them.
Tier tier_of(OffloadDevice device, bool optimizer_on_device) {
  if (device == OffloadDevice::nvme) return Tier::nvme;
  return device == OffloadDevice::none && optimizer_on_device ? Tier::device : Tier::host;
}

ElementCount shard_of(ElementCount elements, std::uint64_t ranks) {
  return ElementCount(round_up(ceil_divide(elements.value(), ranks), shard_multiple));
}

Result<void> check(const RunEstimateOptions& o) {
  const auto refuse = [](const char* object) {
    return Error::invalid_argument("estimate_run").object(object);
  };
  if (o.parameters.is_zero() || o.parameters > ModelLayout::model_elements_max) {
    return refuse("parameters").wanted("from 1 to 2^42, the largest layout").got(o.parameters.value());
  }
  if (o.largest_unit.is_zero() || o.largest_unit > o.parameters) {
    return refuse("largest_unit").wanted("from 1 to the parameters of the model").got(o.largest_unit);
  }
  for (const std::uint32_t n : {o.ranks_per_node, o.nodes, o.micro_batches, o.tiles_in_flight}) {
    if (n == 0 || n > 65536) {
      return refuse("ranks, nodes, micro-batches, tiles in flight").wanted("each from 1 to 65536").got(n);
    }
  }
  if (o.tile_elements && (o.tile_elements->is_zero() || o.tile_elements->value() > 0xffffffff)) {
    return refuse("tile_elements").wanted("from 1 to 4294967295").got(*o.tile_elements);
  }
  if (!(o.cpu_update_ratio >= 0 && o.cpu_update_ratio <= 1)) {
    return refuse("cpu_update_ratio").wanted("from 0 to 1").got(number_text(o.cpu_update_ratio));
  }
  if (o.optimizer == cpu_adam::Optimizer::muon) {
    return refuse("optimizer")
        .reason("the bytes of Muon depend on which parameters are matrices")
        .wanted("adam, lion, adagrad or custom")
        .got("muon")
        .advice("name the model: penstock estimate --model");
  }
  if (const auto format = tile_layout(o.state_format, o.dtype, o.optimizer).format;
      !cpu_adam::takes_parameter(format, o.dtype)) {
    return refuse("dtype")
        .wanted("bf16, for state format " + std::string(to_string(o.state_format)))
        .got(std::string(to_string(o.dtype)));
  }
  return ok();
}

/// As far as the plan of the update depends on it.
Config config_of(const RunEstimateOptions& options) {
  Config config;
  config.stage = options.stage;
  config.dtype = options.dtype;
  config.grad_accum_dtype = options.grad_accum_dtype;
  config.cpu_update_ratio = options.cpu_update_ratio;
  config.offload_optimizer.device = options.offload_optimizer;
  config.penstock.state_format = options.state_format;
  config.optimizer.type = options.optimizer;
  config.penstock.tile_elements = options.tile_elements;
  config.penstock.update_split = options.update_split;
  config.penstock.device_states = options.device_states;
  return config;
}

ElementCount rest_of(ElementCount elements, ElementCount part) {
  return elements - part * (elements / part);
}

Result<ByteCount> padded_tile(cpu_adam::TileLayout format, ElementCount elements) {
  PENSTOCK_TRY_ASSIGN(const ByteCount bytes, cpu_adam::tile_bytes(format, elements));
  return round_up(bytes, extent_alignment);
}

/// Of elements that are cut into tiles of `tile` elements.
Result<ByteCount> padded_tiles(cpu_adam::TileLayout format, ElementCount elements, ElementCount tile) {
  PENSTOCK_TRY_ASSIGN(const ByteCount whole, padded_tile(format, tile));
  PENSTOCK_TRY_ASSIGN(const ByteCount rest, padded_tile(format, rest_of(elements, tile)));
  return whole * (elements / tile) + rest;
}

/// A rank's tiles.
struct Tiles {
  MemoryPlan plan;  // the members that host_results() and slots depend on
  ElementCount longest;
  ByteCount largest, all;
};

/// Of tiles of `size` bytes.
void divide_equal_tiles(MemoryPlan& plan, const Config& config, ByteCount size) {
  const bool automatic = config.penstock.update_split == UpdateSplit::automatic;
  const auto of_cpu = static_cast<std::uint64_t>(
      std::llround(automatic ? 0 : double(config.cpu_update_ratio) * double(plan.tiles)));
  const std::uint64_t others = plan.tiles - plan.tiles_kept;
  plan.update.split = others > 0 ? config.penstock.update_split : UpdateSplit::ratio;
  plan.update.tiles_by_device = plan.tiles - std::min(of_cpu, others);
  plan.update.streamed = size * (plan.update.tiles_by_device - plan.tiles_kept);
}

Result<Tiles> plan_tiles(const Config& config, bool shards_on_device, ElementCount shard,
                         ElementCount unit_shard, ElementCount longest) {
  const cpu_adam::TileLayout format = tile_layout(config);
  const ElementCount rest = rest_of(shard, unit_shard);
  Tiles tiles{.longest = longest};
  PENSTOCK_TRY_ASSIGN(tiles.largest, padded_tile(format, longest));
  PENSTOCK_TRY_ASSIGN(const ByteCount of_unit, padded_tiles(format, unit_shard, longest));
  PENSTOCK_TRY_ASSIGN(const ByteCount of_rest, padded_tiles(format, rest, longest));
  tiles.all = of_unit * (shard / unit_shard) + of_rest;
  const auto tiles_of = [&](ElementCount elements) { return ceil_divide(elements.value(), longest.value()); };
  MemoryPlan& plan = tiles.plan;
  plan.device_squares = true;
  plan.gradients_on_device = config.offload_optimizer.device == OffloadDevice::none;
  plan.shards_on_device = shards_on_device;
  plan.tiles = shard / unit_shard * tiles_of(unit_shard) + tiles_of(rest);
  PENSTOCK_TRY_ASSIGN(const ByteCount room, room_on_device(plan, config, tiles.largest, tiles.all));
  // As if all tiles were as large.
  plan.tiles_kept = room >= tiles.all ? plan.tiles : room / tiles.largest;
  plan.device_tiles = room >= tiles.all ? tiles.all : tiles.largest * plan.tiles_kept;
  divide_equal_tiles(plan, config, tiles.largest);
  PENSTOCK_TRY(plan_update(plan, config, longest));
  PENSTOCK_TRY_ASSIGN(const HostPiece piece, HostPiece::of(plan, config, longest));
  plan.host_piece = piece.size;
  return tiles;
}

/// As plan_memory() chooses their length.
Result<Tiles> choose_tiles(const Config& config, bool shards_on_device, ElementCount shard,
                           ElementCount unit_shard) {
  const auto with = [&](ElementCount length) {
    return plan_tiles(config, shards_on_device, shard, unit_shard, std::min(length, unit_shard));
  };
  std::vector<ElementCount> lengths = tile_lengths(config, tiers::DeviceMemory::separate);
  const ElementCount last = lengths.back();
  lengths.pop_back();
  for (const ElementCount length : lengths) {
    auto tiles = with(length);
    if (tiles && tiles->plan.tiles >= streamed_tiles_min) return tiles;
  }
  return with(last);
}

ByteCount sum(const RunEstimate& estimate, Tier tier, ByteCount RunEstimate::Line::*which) {
  ByteCount total;
  for (const auto& line : estimate.lines) {
    if (line.tier == tier) total += line.*which;
  }
  return total;
}

}  // namespace

ByteCount RunEstimate::per_rank(Tier tier) const {
  return sum(*this, tier, &Line::per_rank);
}

ByteCount RunEstimate::per_node(Tier tier) const {
  return sum(*this, tier, &Line::per_node);
}

ByteCount RunEstimate::read_per_step_per_node() const {
  ByteCount total;
  for (const Traffic& moved : traffic) total += moved.read * ranks_per_node;
  return total;
}

ByteCount RunEstimate::written_per_step_per_node() const {
  ByteCount total;
  for (const Traffic& moved : traffic) total += moved.written * ranks_per_node;
  return total;
}

Result<RunEstimate> estimate_run(const RunEstimateOptions& options) {
  PENSTOCK_TRY(check(options));
  const std::uint64_t ranks = std::uint64_t{options.ranks_per_node} * options.nodes;
  const ElementCount shard = shard_of(options.parameters, ranks);
  const ElementCount unit_shard = shard_of(options.largest_unit, ranks);
  const Config config = config_of(options);
  const bool on_device = options.offload_optimizer == OffloadDevice::none;
  const Tier parameter_tier = tier_of(options.offload_param, on_device);
  const Tier optimizer_tier = tier_of(options.offload_optimizer, on_device);
  const cpu_adam::TileLayout format = tile_layout(options.state_format, options.dtype, options.optimizer);
  PENSTOCK_TRY_ASSIGN(const Tiles tiles,
                      choose_tiles(config, parameter_tier == Tier::device, shard, unit_shard));
  const MemoryPlan& plan = tiles.plan;
  const ByteCount kept = plan.device_tiles, states = tiles.all - kept;
  const bool tiles_on_disk = optimizer_tier == Tier::nvme && !states.is_zero();

  RunEstimate estimate{.ranks_per_node = options.ranks_per_node};
  const auto hold = [&](Tier tier, Purpose purpose, ByteCount bytes) {
    if (!bytes.is_zero()) estimate.lines.push_back({tier, purpose, bytes, bytes * options.ranks_per_node});
  };
  const std::uint64_t element = size_of(options.dtype).value();
  const ByteCount parameters(shard.value() * element), unit(unit_shard.value() * ranks * element);
  const ByteCount gradient = size_of(options.grad_accum_dtype) * shard.value();
  const ByteCount slots = plan.update.device_bytes();

  hold(parameter_tier, Purpose::parameter_shard, parameters);
  hold(Tier::device, Purpose::optimizer_tile, kept + slots);
  hold(on_device ? Tier::device : Tier::host, Purpose::gradient_shard, gradient);
  const std::uint64_t live_units = options.largest_unit == options.parameters ? 1 : 2;
  hold(Tier::device, Purpose::gathered_flat,
       config.shards_parameters() ? unit * live_units : parameters * ranks);
  hold(Tier::device, Purpose::full_gradient, unit * live_units);

  const bool streams = parameter_tier == Tier::nvme || tiles_on_disk;
  const ByteCount unit_gradient = size_of(options.grad_accum_dtype) * unit_shard.value();
  const ByteCount unit_parameters(unit_shard.value() * element);
  const ByteCount staging =
      host_staging({.tile = tiles_on_disk ? tiles.largest : ByteCount(),
                    .shard = parameter_tier == Tier::nvme ? unit_parameters : ByteCount(),
                    .gradient = streams && !on_device ? unit_gradient : ByteCount(),
                    .incoming = on_device ? ByteCount() : unit_parameters});
  const ByteCount ring =
      optimizer_tier == Tier::nvme
          ? tiles.largest * std::min(tile_ring(options.tiles_in_flight, plan.update.host_tiles()),
                                     plan.tiles - plan.tiles_kept)
          : ByteCount();
  hold(Tier::host, Purpose::staging, staging + ring);
  hold(Tier::host, Purpose::scratch, host_results(plan, partials_bytes(shard)));
  hold(Tier::device, Purpose::scratch, round_up(partials_bytes(unit_shard), extent_alignment));
  if (parameter_tier == Tier::nvme) {
    estimate.traffic.push_back(
        {Purpose::parameter_shard,
         parameters * (2 * options.micro_batches + (cpu_adam::shares_parameter(format.format) ? 1 : 0)),
         parameters});
  }
  if (tiles_on_disk) {
    estimate.traffic.push_back({Purpose::optimizer_tile, states, states});
  }
  if (!on_device) hold(optimizer_tier, Purpose::optimizer_tile, states);
  std::stable_sort(estimate.lines.begin(), estimate.lines.end(), [](const auto& a, const auto& b) {
    return std::pair(a.tier, a.purpose) < std::pair(b.tier, b.purpose);
  });
  return estimate;
}

}  // namespace penstock::zero
