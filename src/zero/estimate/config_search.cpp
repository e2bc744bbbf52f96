#include "zero/estimate/config_search.hpp"

#include "zero/config/hjson.hpp"
#include "zero/config/json_text.hpp"
#include "zero/config/rules.hpp"

#include <algorithm>
#include <tuple>

namespace penstock::zero::estimate {

namespace {

using cpu_adam::StateFormat;
using Link = PlanEstimate::Link;

constexpr std::string_view stage_key = "zero_optimization.stage",
                           optimizer_key = "zero_optimization.offload_optimizer.device",
                           parameters_key = "zero_optimization.offload_param.device",
                           format_key = "penstock.state_format", states_key = "penstock.device_states";

std::vector<StateFormat> formats_of(const SearchOptions& options) {
  if (config::has_16_bit_masters(options.base) || options.keeps(format_key))
    return {options.base.penstock.state_format};
  std::vector<StateFormat> formats = {StateFormat::fp32};
  const bool in_fp32 = options.base.optimizer.type != cpu_adam::Optimizer::adam ||
                       options.base.penstock.non_finite_gradients == NonFiniteGradients::as_deepspeed;
  if (options.base.dtype != DType::bf16 || in_fp32) return formats;
  formats.push_back(StateFormat::split);
  if (options.lossy) formats.insert(formats.end(), {StateFormat::split_bf16, StateFormat::split_q8});
  return formats;
}

std::vector<std::uint32_t> stages_of(const SearchOptions& options) {
  const Config& base = options.base;
  if (options.keeps(stage_key)) return {base.stage};
  std::vector<std::uint32_t> stages;
  if (base.cpu_update_ratio == 1.0f) stages.push_back(2);
  if (base.gradient_allreduce_op == AllreduceOp::mean) stages.push_back(3);
  return stages;
}

/// 16-bit masters with fp32 moments must be offloaded, and so must states that only the CPU updates.
std::vector<OffloadDevice> optimizer_devices(const SearchOptions& options) {
  using enum OffloadDevice;
  const Config& base = options.base;
  if (options.keeps(optimizer_key)) return {base.offload_optimizer.device};
  if (base.optimizer.type != cpu_adam::Optimizer::adam ||
      (config::has_16_bit_masters(base) && base.penstock.state_format == StateFormat::moments))
    return {cpu, nvme};
  return {none, cpu, nvme};
}

std::vector<OffloadDevice> parameter_devices(const SearchOptions& options, std::uint32_t stage,
                                             OffloadDevice optimizer) {
  using enum OffloadDevice;
  if (const OffloadDevice device = options.base.offload_param.device; options.keeps(parameters_key))
    return stage == 3 || device == none ? std::vector{device} : std::vector<OffloadDevice>();
  if (stage != 3) return {none};
  if (optimizer == none) return {none, cpu, nvme};
  return {cpu, nvme};
}

std::vector<Config> configs_of(const SearchOptions& options) {
  using enum OffloadDevice;
  std::vector<Config> configs;
  for (const std::uint32_t stage : stages_of(options)) {
    for (const OffloadDevice optimizer : optimizer_devices(options)) {
      for (const OffloadDevice parameters : parameter_devices(options, stage, optimizer)) {
        for (const StateFormat format : formats_of(options)) {
          Config& config = configs.emplace_back(options.base);
          config.stage = stage;
          config.offload_optimizer.device = optimizer;
          config.offload_param.device = parameters;
          config.penstock.state_format = format;
          if (optimizer != nvme) config.offload_optimizer.nvme_paths.clear();
          if (optimizer == none || options.run.device_memory == tiers::DeviceMemory::host)
            config.penstock.device_states = {};
          if (parameters == nvme) continue;
          config.offload_param.nvme_paths.clear();
          config.max_in_cpu.reset();
        }
      }
    }
  }
  if (options.base.penstock.tiles_in_flight == config::usual_tiles_in_flight(options.base)) {
    for (Config& config : configs) config.penstock.tiles_in_flight = config::usual_tiles_in_flight(config);
  }
  return configs;
}

void take_cost(Candidate& candidate, const PlanEstimate& estimate) {
  candidate.nvme = estimate.moved(Link::nvme);
  candidate.device = estimate.moved(Link::device);
}

/// Whether states that are offloaded to host memory or NVMe may stay on the device. A base that says how many keeps its
/// number.
bool may_keep_states(const Config& config, const SearchOptions& options) {
  return config.offload_optimizer.device != OffloadDevice::none && !options.device_budget.is_zero() &&
         options.base.penstock.device_states.is_zero() && !options.keeps(states_key) &&
         config.optimizer.type == cpu_adam::Optimizer::adam &&
         options.run.device_memory == tiers::DeviceMemory::separate;
}

/// What the device's budget leaves holds states, where that makes the configuration fit, or saves what moves over the
/// drives.
void keep_states_on_device(Candidate& candidate, const SearchOptions& options, const ModelLayout& layout) {
  const bool is_cheapest = candidate.chosen && candidate.nvme.is_zero();
  if (is_cheapest) return;
  const ByteCount states = most_device_states(candidate.config, options, layout);
  if (states.is_zero()) return;
  Config keeping = candidate.config;
  keeping.penstock.device_states = states;
  auto estimate = estimate_plan(keeping, layout, options.run);
  if (!estimate || (candidate.chosen && estimate->moved(Link::nvme) >= candidate.nvme)) return;
  candidate = {.config = std::move(keeping),
               .host_need = estimate->plan.host_minimum * options.run.ranks_per_node,
               .device_need = estimate->plan.device_minimum};
  take_cost(candidate, *estimate);
  candidate.chosen = std::move(*estimate);
}

Result<Candidate> try_config(Config config, const SearchOptions& options, const ModelLayout& layout) {
  config.penstock.host_budget = config.penstock.device_budget = {};
  config.penstock.node_budgets.clear();
  PENSTOCK_TRY_ASSIGN(const PlanEstimate unlimited, estimate_plan(config, layout, options.run));
  if (options.by_numa_node)
    config.penstock.node_budgets = options.base.penstock.node_budgets;
  else
    config.penstock.host_budget = options.host_budget;
  config.penstock.device_budget = options.device_budget;
  Candidate candidate{.config = std::move(config),
                      .host_need = unlimited.plan.host_minimum * options.run.ranks_per_node,
                      .device_need = unlimited.plan.device_minimum};
  take_cost(candidate, unlimited);
  auto limited = estimate_plan(candidate.config, layout, options.run);
  if (limited) {
    take_cost(candidate, *limited);
    candidate.device_need =
        std::min(candidate.device_need, limited->plan.device_minimum);  // of shorter tiles
    candidate.chosen = std::move(*limited);
  } else if (limited.error().code() != ErrorCode::budget_too_small) {
    return std::move(limited).error();
  }
  keep_states_on_device(candidate, options, layout);
  return candidate;
}

/// Removes the members of `json` that are the same in `defaults`.
void remove_defaults(Json::Value& json, const Json::Value& defaults) {
  for (const std::string& name : json.getMemberNames()) {
    if (!defaults.isMember(name)) continue;
    Json::Value& member = json[name];
    if (member.isObject() && defaults[name].isObject()) {
      remove_defaults(member, defaults[name]);
      if (member.empty()) json.removeMember(name);
    } else if (member == defaults[name]) {
      json.removeMember(name);
    }
  }
}

Json::Value parsed(const std::string& json) {
  std::vector<config::Problem> none;
  return config::parse_hjson(json, none);
}

/// Whether the text means this configuration.
bool means(const std::string& text, const Config& config) {
  const std::uint32_t per_rank = config.micro_batch_size * config.gradient_accumulation_steps;
  const auto read = Config::from_text(text, "the configuration", config.train_batch_size / per_rank);
  return read && read->to_json() == config.to_json();
}

}  // namespace

ByteCount most_device_states(const Config& config, const SearchOptions& options, const ModelLayout& layout) {
  if (!may_keep_states(config, options)) return {};
  Config unlimited = config;
  unlimited.penstock.host_budget = unlimited.penstock.device_budget = {};
  unlimited.penstock.node_budgets.clear();
  // What slots and other memory take beside the states depends on these.
  ByteCount& states = unlimited.penstock.device_states;
  states = options.device_budget;
  while (true) {
    const auto planned = estimate_plan(unlimited, layout, options.run);
    if (!planned) return {};  // there is no room for a tile
    const ByteCount need = planned->plan.device_minimum, kept = planned->plan.device_tiles;
    if (need <= options.device_budget) return states;
    const ByteCount above = need - options.device_budget;
    if (above >= kept) return {};
    states = kept - above;
  }
}

std::string Candidate::name() const {
  std::string text = "stage " + std::to_string(config.stage);
  if (config.shards_parameters())
    text.append(", offload_param ").append(to_string(config.offload_param.device));
  text.append(", offload_optimizer ").append(to_string(config.offload_optimizer.device));
  text.append(", state_format ").append(to_string(config.penstock.state_format));
  const ByteCount on_device = config.penstock.device_states;
  return on_device.is_zero() ? text : text.append(", device_states ").append(to_string(on_device));
}

Result<ConfigSearch> ConfigSearch::run(const SearchOptions& options, const ModelLayout& layout) {
  ConfigSearch search;
  std::optional<Error> no_room;  // in the base's device_states, for a tile of some format
  for (Config& config : configs_of(options)) {
    auto candidate = try_config(std::move(config), options, layout);
    if (candidate) {
      search.candidates.push_back(std::move(*candidate));
    } else if (candidate.error().code() == ErrorCode::invalid_config &&
               !options.base.penstock.device_states.is_zero()) {
      no_room = std::move(candidate).error();
    } else {
      return std::move(candidate).error();
    }
  }
  if (search.candidates.empty() && no_room) return *std::move(no_room);
  if (search.candidates.empty()) {
    return Error::invalid_argument("ConfigSearch::run")
        .reason("no stage supports both offload_optimizer.ratio and gradient_allreduce_op sum")
        .advice("leave out one of them");
  }
  std::stable_sort(search.candidates.begin(), search.candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return std::tie(a.nvme, a.device) < std::tie(b.nvme, b.device);
                   });
  for (std::size_t i = 0; i < search.candidates.size() && !search.best; ++i) {
    if (search.candidates[i].chosen) search.best = i;
  }
  return search;
}

Error ConfigSearch::nothing_fits(const SearchOptions& options) const {
  const auto given = [](ByteCount budget) { return budget.is_zero() ? "any" : to_exact_string(budget); };
  const auto fits = [](ByteCount need, ByteCount budget) { return budget.is_zero() || need <= budget; };
  const auto any = [](const Candidate&) { return true; };
  const auto in_host = [&](const Candidate& one) { return fits(one.host_need, options.host_budget); };
  const auto in_device = [&](const Candidate& one) { return fits(one.device_need, options.device_budget); };

  Error error(ErrorCode::budget_too_small, "penstock estimate");
  const auto note_least = [&](const char* tier, ByteCount Candidate::*need, const char* of, auto&& among) {
    const Candidate* least = nullptr;
    for (const Candidate& one : candidates) {
      if (among(one) && (least == nullptr || one.*need < least->*need)) least = &one;
    }
    if (least == nullptr) return;
    error = std::move(error).note(std::string(tier) + " at least " + to_exact_string(least->*need) + of +
                                  ": " + least->name());
  };
  note_least("host   ", &Candidate::host_need, " a node", any);
  note_least("device ", &Candidate::device_need, " a rank", any);
  note_least("host   ", &Candidate::host_need, " a node within the device's budget", in_device);
  note_least("device ", &Candidate::device_need, " a rank within the host's budget", in_host);
  return std::move(error)
      .reason("no configuration fits")
      .object("--budget-host " + given(options.host_budget) + ", --budget-device " +
              given(options.device_budget))
      .advice(!options.base.penstock.device_states.is_zero()
                  ? "raise a budget, or lower penstock.device_states"
              : options.keeps(stage_key) || options.keeps(optimizer_key) || options.keeps(parameters_key) ||
                      options.keeps(format_key)
                  ? "raise a budget, or leave out of --config what the search shall choose"
              : options.lossy ? "raise a budget, use smaller units or tiles, or more ranks"
                              : "raise a budget, use smaller units or tiles, more ranks, or --lossy");
}

std::string to_short_json(const Config& config) {
  Json::Value json = parsed(config.to_json());
  Config usual;
  usual.penstock.tiles_in_flight = config::usual_tiles_in_flight(config);
  const Json::Value defaults = parsed(usual.to_json());
  // These follow from others.
  json.removeMember("train_batch_size");
  json.removeMember("communication_data_type");
  const Json::Value all = json;
  remove_defaults(json, defaults);
  // The batch must be given, and the default of this type follows from another key.
  for (const char* name : {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "data_types"}) {
    if (all.isMember(name)) json[name] = all[name];
  }
  const std::string text = config::write_json(json);
  return means(text, config) ? text : config::write_json(all);
}

}  // namespace penstock::zero::estimate
