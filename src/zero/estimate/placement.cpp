#include "zero/estimate/placement.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace penstock::zero::estimate {

using tiers::Tier;

namespace {

constexpr std::size_t number(Tier tier) {
  return static_cast<std::size_t>(tier);
}

ByteCount moved_of_node(const PlanEstimate& estimate) {
  return estimate.read_per_node() + estimate.written_per_node();
}

struct Alternative {
  std::string change;
  std::function<void(Config&)> apply;
};

std::vector<Alternative> alternatives(const Config& config, const PlanEstimate& estimate) {
  const MemoryPlan& plan = estimate.plan;
  std::vector<Alternative> all;
  using enum cpu_adam::StateFormat;
  if (config.dtype == DType::bf16 && config.optimizer.type == cpu_adam::Optimizer::adam) {
    for (const cpu_adam::StateFormat format : {split, split_bf16, split_q8}) {
      if (format == config.penstock.state_format) continue;
      all.push_back({"state_format " + std::string(to_string(format)) +
                         (format == split ? " (the same bits)" : " (rounded moments)"),
                     [format](Config& changed) { changed.penstock.state_format = format; }});
    }
  }
  const std::string as_planned = !config.penstock.node_budgets.empty()    ? ", no node_budgets"
                                 : !config.penstock.host_budget.is_zero() ? ", no host_budget"
                                                                          : "";
  if (const ByteCount moved = plan.disk_tiles - plan.home_tiles; !moved.is_zero()) {
    const ByteCount budget = plan.host_of_machine + moved / 2 * estimate.run.ranks_per_node;
    const std::string other = config.penstock.node_budgets.empty() ? "" : ", no node_budgets";
    all.push_back({"host_budget " + to_string(budget) + other, [budget](Config& changed) {
                     changed.penstock.host_budget = budget;
                     changed.penstock.node_budgets.clear();
                   }});
    // As many bytes of the device's memory.
    if (estimate.run.device_memory == tiers::DeviceMemory::separate &&
        config.optimizer.type == cpu_adam::Optimizer::adam) {
      const ByteCount states = plan.device_tiles + moved / 2;
      all.push_back({"device_states " + to_string(states),
                     [states](Config& changed) { changed.penstock.device_states = states; }});
    }
    all.push_back({"offload_optimizer.device cpu" + as_planned, [](Config& changed) {
                     changed.offload_optimizer.device = OffloadDevice::cpu;
                     changed.penstock.host_budget = {};
                     changed.penstock.node_budgets.clear();
                   }});
  }
  if (plan.disk_shards > plan.home_shards) {
    all.push_back({"offload_param.device cpu" + as_planned, [](Config& changed) {
                     changed.offload_param.device = OffloadDevice::cpu;
                     changed.penstock.host_budget = {};
                     changed.penstock.node_budgets.clear();
                   }});
  }
  return all;
}

}  // namespace

ByteCount PlacedBytes::total() const {
  return std::accumulate(in.begin(), in.end(), ByteCount());
}

double PlacedBytes::share(Tier tier) const {
  const auto all = static_cast<double>(total().value());
  return all > 0 ? static_cast<double>(in.at(number(tier)).value()) / all : 0;
}

std::vector<PlacedBytes> placement_of(const MemoryPlan& plan) {
  std::vector<PlacedBytes> kinds = {
      {"parameters",
       {plan.device_shards, plan.host_shards + plan.home_shards, plan.disk_shards - plan.home_shards}},
      {"gradients", {plan.device_accumulators, plan.host_gradients, plan.disk_gradients}},
      {"optimizer states",
       {plan.device_tiles, plan.host_tiles + plan.home_tiles, plan.disk_tiles - plan.home_tiles}}};
  kinds.push_back(
      {"activations", {plan.checkpoints.device_bytes(), plan.host_checkpoints, plan.disk_checkpoints}});
  std::erase_if(kinds, [](const PlacedBytes& kind) { return kind.total().is_zero(); });
  return kinds;
}

std::vector<Knob> next_knobs(const Config& config, const ModelLayout& layout, const PlanEstimate& estimate) {
  const ByteCount now = moved_of_node(estimate);
  std::vector<Knob> knobs;
  for (const auto& [change, apply] : alternatives(config, estimate)) {
    Config changed = config;
    apply(changed);
    const auto other = estimate_plan(changed, layout, estimate.run);
    if (!other || moved_of_node(*other) >= now) continue;
    knobs.push_back({.change = change,
                     .config = std::move(changed),
                     .host = other->per_node(Tier::host),
                     .nvme = other->per_node(Tier::nvme),
                     .device = other->per_rank(Tier::device),
                     .moved = moved_of_node(*other)});
  }
  std::stable_sort(knobs.begin(), knobs.end(),
                   [](const Knob& a, const Knob& b) { return a.moved < b.moved; });
  return knobs;
}

double drive_seconds(const Config& config, const PlanEstimate& estimate) {
  const std::vector<double>& limits = config.penstock.path_limits;
  if (limits.size() != estimate.paths.size()) return 0;
  double longest = 0;
  for (std::size_t i = 0; i < limits.size(); ++i) {
    const auto moved = static_cast<double>((estimate.paths[i].read + estimate.paths[i].written).value());
    longest = std::max(longest, moved / limits[i]);
  }
  return longest;
}

}  // namespace penstock::zero::estimate
