#include "zero/simulate/placement_search.hpp"

#include "zero/simulate/in_parallel.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace penstock::zero::simulate {

namespace {

using estimate::Candidate;
using estimate::SearchOptions;
using Fitting = PlacementSearch::Fitting;
using Tried = PlacementSearch::Tried;

/// What a search works with.
struct Search {
  const SearchOptions& options;
  const ModelLayout& layout;
  const TimedRun& run;
};

/// A value of a setting.
struct Value {
  std::string name;
  std::function<void(Config&)> set;
};

Fitting fitting_of(Config config, std::string name, const TimedConfig& timed) {
  const swap::ReplayedRound& step = timed.model.simulation.steady;
  return {.config = std::move(config),
          .name = std::move(name),
          .seconds = step.seconds,
          .waits = step.seconds - step.used,
          .recomputation = timed.recomputation};
}

Result<void> check_budget(const char* option, ByteCount budget, ByteCount memory) {
  if (memory.is_zero() || budget <= memory) return ok();
  return Error::invalid_argument("penstock estimate")
      .object(option)
      .reason("the machine has less memory")
      .wanted("at most " + to_exact_string(memory))
      .got(budget);
}

/// Where disks differ: their shares, of which the smallest is 1, and their rates, by which copies stay in memory.
void weigh_paths(Config& config, const Search& search) {
  const auto& disks = search.run.machine.costs.disks;
  if (config.swap_directories().empty()) return;
  const auto differ = [&](auto figure) {
    return std::any_of(disks.begin(), disks.end(),
                       [&](const auto& disk) { return figure(disk) != figure(disks[0]); });
  };
  if (!differ([](const auto& disk) { return disk.weight; }) &&
      !differ([](const auto& disk) { return disk.rates.mixed; }))
    return;
  const auto least = std::min_element(disks.begin(), disks.end(),
                                      [](const auto& a, const auto& b) { return a.weight < b.weight; });
  if (!search.options.keeps("penstock.path_weights")) {
    config.penstock.path_weights.clear();
    for (const auto& disk : disks) config.penstock.path_weights.push_back(disk.weight / least->weight);
  }
  if (!search.options.keeps("penstock.path_limits")) {
    config.penstock.path_limits.clear();
    for (const auto& disk : disks) config.penstock.path_limits.push_back(disk.rates.mixed);
  }
}

std::vector<Result<TimedConfig>> time_configs(const Search& search, const std::vector<Config>& configs) {
  return in_parallel(configs.size(), simulation_threads(), [&](std::size_t i) {
    auto timed = time_config(configs[i], search.layout, search.run);
    if (timed) timed->model.step.trace = {};  // of a large model it takes much memory
    return timed;
  });
}

/// Every candidate of the search by bytes that fits, in its order, and where states may stay on the device also with as
/// many of them as it has room for.
Result<std::vector<Fitting>> time_candidates(const Search& search, const estimate::ConfigSearch& by_bytes) {
  std::vector<Config> configs;
  std::vector<std::string> names;
  for (const Candidate& candidate : by_bytes.candidates) {
    if (!candidate.chosen) continue;
    const auto add = [&](const Candidate& one) {
      weigh_paths(configs.emplace_back(one.config), search);
      names.push_back(one.name());
    };
    add(candidate);
    Candidate keeping{.config = candidate.config};
    keeping.config.penstock.device_states = most_device_states(keeping.config, search.options, search.layout);
    if (candidate.config.penstock.device_states < keeping.config.penstock.device_states) add(keeping);
  }
  const auto timed = time_configs(search, configs);
  std::vector<Fitting> fitting;
  std::optional<Error> too_small;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    if (timed[i]) {
      fitting.push_back(fitting_of(std::move(configs[i]), std::move(names[i]), *timed[i]));
      continue;
    }
    if (timed[i].error().code() != ErrorCode::budget_too_small) return timed[i].error();
    if (!too_small) too_small = timed[i].error();
  }
  if (fitting.empty() && too_small) return *std::move(too_small);
  return fitting;
}

/// Where states stay on the device, another setting may leave room for fewer of them.
void refit_states(Config& config, const Search& search) {
  ByteCount& states = config.penstock.device_states;
  if (states.is_zero() || search.options.keeps("penstock.device_states")) return;
  states = std::min(states, most_device_states(config, search.options, search.layout));
}

/// Keeps the fastest one, if it is worth it.
void try_values(const Search& search, const std::vector<Value>& values, Fitting& current,
                std::vector<Tried>& tried) {
  std::vector<Config> configs;
  for (const Value& value : values) {
    value.set(configs.emplace_back(current.config));
    refit_states(configs.back(), search);
  }
  const auto timed = time_configs(search, configs);
  std::optional<std::size_t> fastest, of_fastest;
  for (std::size_t i = 0; i < values.size(); ++i) {
    tried.push_back({.setting = values[i].name});
    if (!timed[i]) continue;  // it cannot be combined, or has no room
    tried.back().seconds = timed[i]->seconds();
    if (fastest && timed[i]->seconds() >= timed[*fastest]->seconds()) continue;
    fastest = i;
    of_fastest = tried.size() - 1;
  }
  if (!fastest || timed[*fastest]->seconds() >= current.seconds * (1 - gain_least)) return;
  tried[*of_fastest].kept = true;
  Config config = std::move(configs[*fastest]);
  std::string name = Candidate{.config = config}.name();
  for (const Tried& one : tried) {
    if (one.kept && !one.setting.starts_with("device_states")) name.append(", ").append(one.setting);
  }
  current = fitting_of(std::move(config), std::move(name), *timed[*fastest]);
}

std::vector<Value> tile_sizes(const Search& search, const Config& config) {
  const auto estimate = estimate_plan(config, search.layout, search.options.run);
  std::vector<Value> values;
  if (!estimate || estimate->plan.tiles == 0 || search.options.keeps("penstock.tile_elements")) return values;
  for (const std::uint64_t times : {2u, 4u}) {
    const ElementCount elements = estimate->plan.tile_elements * times;
    values.push_back({"tile_elements " + to_string(elements),
                      [elements](Config& changed) { changed.penstock.tile_elements = elements; }});
  }
  return values;
}

std::vector<Value> depths(const Search& search, const Config& config) {
  std::vector<Value> values;
  if (config.offload_optimizer.device != OffloadDevice::nvme ||
      search.options.keeps("penstock.tiles_in_flight"))
    return values;
  for (const std::uint32_t times : {2u, 4u}) {
    const std::uint32_t depth = config.penstock.tiles_in_flight * times;
    values.push_back({"tiles_in_flight " + std::to_string(depth),
                      [depth](Config& changed) { changed.penstock.tiles_in_flight = depth; }});
  }
  return values;
}

bool may_update_on_device(const Search& search, const Config& config) {
  return config.offload_optimizer.device != OffloadDevice::none &&
         config.optimizer.type == cpu_adam::Optimizer::adam &&
         search.run.shape.device_memory == tiers::DeviceMemory::separate;
}

std::vector<Value> updates(const Search& search, const Config& config) {
  const bool is_given = search.options.keeps("zero_optimization.offload_optimizer.ratio") ||
                        search.options.keeps("penstock.update_split");
  if (is_given || !may_update_on_device(search, config)) return {};
  const auto ratio = [](float part) { return [part](Config& changed) { changed.cpu_update_ratio = part; }; };
  return {{"offload_optimizer.ratio 0.5", ratio(0.5f)},
          {"offload_optimizer.ratio 0", ratio(0)},
          {"update_split automatic",
           [](Config& changed) { changed.penstock.update_split = UpdateSplit::automatic; }}};
}

std::vector<Value> kept_states(const Search& search, const Config& config) {
  const ByteCount most = most_device_states(config, search.options, search.layout);
  if (most.is_zero()) return {};
  std::vector<Value> values;
  // The fastest may lie between: with more the link is busier, with fewer the disks.
  for (const std::uint64_t eighths : {0u, 2u, 4u, 5u, 6u, 7u, 8u}) {
    const ByteCount states = eighths == 8 ? most : most / 8 * eighths;
    if (states == config.penstock.device_states) continue;
    values.push_back({"device_states " + to_string(states),
                      [states](Config& changed) { changed.penstock.device_states = states; }});
  }
  return values;
}

/// The engine takes less, so that activations have more.
std::vector<Value> device_budgets(const Search& search, const Fitting& current) {
  const auto& recomputation = current.recomputation;
  std::vector<Value> values;
  if (!recomputation || recomputation->kept == recomputation->blocks ||
      search.options.keeps("penstock.device_budget"))
    return values;
  const ByteCount states = current.config.penstock.device_states;
  const bool may_keep_fewer = !states.is_zero() && !search.options.keeps("penstock.device_states");
  for (const ByteCount kept : may_keep_fewer ? std::vector{states, ByteCount()} : std::vector{states}) {
    Config least = current.config;
    least.penstock.device_states = kept;
    least.penstock.device_budget = {};
    const auto estimate = estimate_plan(least, search.layout, search.options.run);
    if (!estimate) continue;
    least.penstock.device_budget = estimate->plan.device_minimum;
    // For one more block that keeps its activations.
    const auto& [sizes, blocks, memory] = *search.run.activations;
    if (memory < least.penstock.device_budget + recomputation->room + sizes.block) continue;
    values.push_back({"device_budget " + to_string(least.penstock.device_budget) +
                          (kept == states ? "" : ", no device_states"),
                      [penstock = least.penstock](Config& changed) { changed.penstock = penstock; }});
  }
  return values;
}

}  // namespace

Result<PlacementSearch> PlacementSearch::run(const SearchOptions& options, const ModelLayout& layout,
                                             const TimedRun& run) {
  PENSTOCK_TRY(check_budget("--budget-host", options.host_budget, run.machine.memory));
  PENSTOCK_TRY(check_budget("--budget-device", options.device_budget, run.machine.device.memory));
  PENSTOCK_TRY_ASSIGN(const auto by_bytes, estimate::ConfigSearch::run(options, layout));
  if (!by_bytes.best) return by_bytes.nothing_fits(options);
  const Search search{options, layout, run};
  PENSTOCK_TRY_ASSIGN(std::vector<Fitting> fitting, time_candidates(search, by_bytes));
  const auto faster = [](const Fitting& a, const Fitting& b) { return a.seconds < b.seconds; };
  const double fastest = std::min_element(fitting.begin(), fitting.end(), faster)->seconds;
  Fitting chosen = *std::find_if(fitting.begin(), fitting.end(), [fastest](const Fitting& one) {
    return one.seconds * (1 - gain_least) <= fastest;
  });
  std::stable_sort(fitting.begin(), fitting.end(), faster);

  std::vector<Tried> tried;
  for (const auto& values : {tile_sizes, updates, kept_states, depths}) {
    if (!chosen.waits_for_nothing()) try_values(search, values(search, chosen.config), chosen, tried);
  }
  try_values(search, device_budgets(search, chosen), chosen, tried);
  PENSTOCK_TRY_ASSIGN(TimedConfig timed, time_changes(chosen.config, layout, run));
  PENSTOCK_TRY_ASSIGN(estimate::PlanEstimate plan, estimate_plan(chosen.config, layout, options.run));
  Config unlimited = chosen.config;
  unlimited.penstock.host_budget = unlimited.penstock.device_budget = {};
  unlimited.penstock.node_budgets.clear();
  PENSTOCK_TRY_ASSIGN(const auto need, estimate_plan(unlimited, layout, options.run));
  const ByteCount device_need =
      std::min(need.plan.device_minimum, plan.plan.device_minimum);  // of shorter tiles
  return PlacementSearch{.fitting = std::move(fitting),
                         .tried = std::move(tried),
                         .chosen = std::move(chosen),
                         .timed = std::move(timed),
                         .plan = std::move(plan),
                         .host_need = need.plan.host_minimum * options.run.ranks_per_node,
                         .device_need = device_need};
}

}  // namespace penstock::zero::simulate
