#include "zero/layout/host_staging.hpp"
#include "zero/layout/padded.hpp"
#include "zero/layout/tiles.hpp"
#include "zero/layout/update_slot.hpp"

#include "zero/estimate/estimate.hpp"

#include <algorithm>

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
  if (const auto format = tile_format(o.state_format, o.dtype);
      cpu_adam::shares_parameter(format) && o.dtype != cpu_adam::shared_parameter_dtype(format)) {
    return refuse("dtype")
        .wanted(std::string(to_string(cpu_adam::shared_parameter_dtype(format))) + ", for state format " +
                std::string(to_string(o.state_format)))
        .got(std::string(to_string(o.dtype)));
  }
  return ok();
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
  const ElementCount tile_elements =
      std::min(options.tile_elements.value_or(cpu_adam::default_tile_elements(options.state_format)), shard);
  const cpu_adam::StateFormat format = tile_format(options.state_format, options.dtype);
  PENSTOCK_TRY_ASSIGN(const ByteCount states, cpu_adam::tile_bytes(format, shard));
  PENSTOCK_TRY_ASSIGN(const ByteCount tile, cpu_adam::tile_bytes(format, tile_elements));

  RunEstimate estimate{.ranks_per_node = options.ranks_per_node};
  const auto hold = [&](Tier tier, Purpose purpose, ByteCount bytes) {
    estimate.lines.push_back({tier, purpose, bytes, bytes * options.ranks_per_node});
  };
  const std::uint64_t element = size_of(options.dtype).value();
  const ByteCount parameters(shard.value() * element), unit(unit_shard.value() * ranks * element);
  const ByteCount gradient(shard.value() *
                           (options.micro_batches > 1 ? size_of(options.grad_accum_dtype).value() : element));
  const bool on_device = options.offload_optimizer == OffloadDevice::none;
  const Tier parameter_tier = tier_of(options.offload_param, on_device);
  const Tier optimizer_tier = tier_of(options.offload_optimizer, on_device);

  hold(parameter_tier, Purpose::parameter_shard, parameters);
  hold(optimizer_tier, Purpose::optimizer_tile, states);
  hold(on_device ? Tier::device : Tier::host, Purpose::gradient_shard, gradient);
  const std::uint64_t live_units = options.largest_unit == options.parameters ? 1 : 2;
  hold(Tier::device, Purpose::gathered_flat, unit * live_units);
  hold(Tier::device, Purpose::full_gradient, unit * live_units);

  const bool streams = parameter_tier == Tier::nvme || optimizer_tier == Tier::nvme;
  const ByteCount unit_gradient(gradient.value() / shard.value() * unit_shard.value());
  const ByteCount unit_parameters(unit_shard.value() * element);
  const ByteCount staging =
      host_staging({.tile = optimizer_tier == Tier::nvme ? tile : ByteCount(),
                    .shard = parameter_tier == Tier::nvme ? unit_parameters : ByteCount(),
                    .gradient = streams && !on_device ? unit_gradient : ByteCount(),
                    .incoming = on_device ? ByteCount() : unit_parameters});
  hold(Tier::host, Purpose::scratch, staging + round_up(partials_bytes(shard), extent_alignment));
  hold(Tier::device, Purpose::scratch, round_up(partials_bytes(unit_shard), extent_alignment));
  if (parameter_tier == Tier::nvme) {
    estimate.traffic.push_back(
        {Purpose::parameter_shard,
         parameters * (2 * options.micro_batches + (cpu_adam::shares_parameter(format) ? 1 : 0)),
         parameters});
  }
  if (optimizer_tier == Tier::nvme) {
    hold(Tier::host, Purpose::optimizer_tile, tile * tile_ring(options.tiles_in_flight, /*updating=*/1));
    estimate.traffic.push_back({Purpose::optimizer_tile, states, states});
  }
  std::stable_sort(estimate.lines.begin(), estimate.lines.end(), [](const auto& a, const auto& b) {
    return std::pair(a.tier, a.purpose) < std::pair(b.tier, b.purpose);
  });
  return estimate;
}

}  // namespace penstock::zero
