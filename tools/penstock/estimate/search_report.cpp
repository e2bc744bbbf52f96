#include "estimate/model_report.hpp"
#include "estimate/timing_report.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <set>
#include <string>
#include <string_view>

namespace penstock::tool {

namespace {

using zero::estimate::Candidate;
using zero::estimate::ConfigSearch;
using zero::estimate::SearchOptions;

constexpr const char* operation = "penstock estimate";

/// Keys that a search chooses.
constexpr std::string_view searched[] = {"zero_optimization.stage",
                                         "zero_optimization.offload_param.device",
                                         "zero_optimization.offload_optimizer.device",
                                         "zero_optimization.offload_optimizer.ratio",
                                         "penstock.state_format",
                                         "penstock.device_states",
                                         "penstock.device_budget",
                                         "penstock.tile_elements",
                                         "penstock.tiles_in_flight",
                                         "penstock.update_split",
                                         "penstock.path_weights",
                                         "penstock.path_limits"};

/// Of these, those that the file gives.
std::set<std::string, std::less<>> keys_given(const std::vector<zero::KeyOrigin>& origins) {
  std::set<std::string, std::less<>> given;
  for (const auto& [path, value, in_words, source, given_as, line, given_value, follows_from] : origins) {
    // A device is derived from nothing but the deprecated cpu_offload and cpu_offload_param.
    const bool is_deprecated = source == zero::KeyOrigin::Source::derived && path.ends_with(".device");
    if (source != zero::KeyOrigin::Source::file && !is_deprecated) continue;
    // These say so instead.
    if (path == "zero_optimization.sub_group_size") given.emplace("penstock.tile_elements");
    if (path == "zero_optimization.offload_optimizer.buffer_count") given.emplace("penstock.tiles_in_flight");
    if (std::find(std::begin(searched), std::end(searched), path) != std::end(searched)) given.insert(path);
  }
  return given;
}

void note_given(const SearchOptions& options) {
  if (options.given.empty()) return;
  std::string keys;
  for (const std::string& key : options.given) keys.append(keys.empty() ? "" : ", ").append(key);
  fmt::print(stderr, "note: --config gives {}: the search keeps {}\n", keys,
             options.given.size() == 1 ? "its value" : "their values");
}

Result<SearchOptions> search_options_of(const EstimateOptions& options) {
  PENSTOCK_TRY_ASSIGN(zero::ConfigFile file, config_of(options));
  SearchOptions search{.base = std::move(file.config), .run = run_of(options), .lossy = options.lossy};
  search.given = keys_given(file.origins);
  if (options.budget_device) search.given.erase("penstock.device_budget");
  note_given(search);
  note_kept_states(search.base, search.run.device_memory);
  // What is not given is limited by the configuration.
  const std::vector<ByteCount>& node_budgets = search.base.penstock.node_budgets;
  search.by_numa_node = !node_budgets.empty() && !options.budget_host;
  if (!node_budgets.empty() && options.budget_host)
    fmt::print(stderr, "note: --budget-host replaces penstock.node_budgets\n");
  search.host_budget =
      std::accumulate(node_budgets.begin(), node_budgets.end(), search.base.penstock.host_budget);
  search.device_budget = search.base.penstock.device_budget;
  if (options.budget_host) {
    PENSTOCK_TRY_ASSIGN(search.host_budget, parse_size(operation, "--budget-host", *options.budget_host));
  }
  if (options.budget_device) {
    PENSTOCK_TRY_ASSIGN(search.device_budget,
                        parse_size(operation, "--budget-device", *options.budget_device));
  }
  return search;
}

std::string need_text(const char* tier, ByteCount need, ByteCount budget) {
  if (budget.is_zero()) return fmt::format("{} {}", tier, to_string(need));
  return fmt::format("{} {} of {}{}", tier, to_string(need), to_string(budget),
                     need > budget ? " (too much)" : "");
}

void explain(const ConfigSearch& search, const SearchOptions& options) {
  const Candidate& best = search.candidates[*search.best];
  fmt::print(stderr, "chosen: {}\n", best.name());
  const auto line = [&](const Candidate& candidate) {
    fmt::print(stderr, "  needs {} a node, {} a rank; moves per rank and step: nvme {}, device {}\n",
               need_text("host", candidate.host_need, options.host_budget),
               need_text("device", candidate.device_need, options.device_budget), to_string(candidate.nvme),
               to_string(candidate.device));
  };
  line(best);
  if (*search.best == 0) return;
  fmt::print(stderr, "cheaper, but do not fit:\n");
  for (std::size_t i = 0; i < *search.best; ++i) {
    fmt::print(stderr, "- {}\n", search.candidates[i].name());
    line(search.candidates[i]);
  }
}

/// Whether the configuration has swap files in a directory that nobody has named.
bool lacks_path(const zero::Config& config) {
  const auto& paths = config.swap_directories();
  return !paths.empty() && paths.front() == placeholder_path();
}

/// `how`: why this one is chosen.
Error no_path(const char* how, const std::string& name) {
  return Error::invalid_argument(operation)
      .reason(std::string(how) + " has swap files, and no directory for them is given")
      .object(name)
      .wanted("--path DIR, once for each drive, or nvme_path in --config")
      .got("neither")
      .advice("give a directory, or larger budgets");
}

ExitStatus print_best(const ConfigSearch& search, const SearchOptions& options) {
  const Candidate& best = search.candidates[*search.best];
  explain(search, options);
  if (lacks_path(best.config)) return fail(no_path("the cheapest configuration that fits", best.name()));
  fmt::print("{}\n", zero::estimate::to_short_json(best.config));
  return done;
}

/// By the bytes that a step moves.
ExitStatus search_by_bytes(const SearchOptions& options, const zero::ModelLayout& layout) {
  const auto search = ConfigSearch::run(options, layout);
  if (!search) return fail(search.error());
  return search->best ? print_best(*search, options) : fail(search->nothing_fits(options));
}

/// By the seconds that a step takes on a machine.
ExitStatus search_by_seconds(const EstimateOptions& options, SearchOptions search_options,
                             zero::estimate::NamedModel& model) {
  const auto run = timed_run_of(options, search_options.base, model);
  if (!run) return fail(run.error());
  print_notes(model.notes);
  fmt::print(stderr, "simulating what fits; for a large model that takes seconds to minutes\n");
  const auto search = zero::simulate::PlacementSearch::run(search_options, model.layout, *run);
  if (!search) return fail(search.error());
  if (lacks_path(search->chosen.config))
    return fail(no_path("the fastest configuration that fits", search->chosen.name));
  if (options.json) {
    print_json(search_json(*search));
    return done;
  }
  fmt::print(stderr, "chosen: {}\n  needs {} a node, {} a rank\n", search->chosen.name,
             need_text("host", search->host_need, search_options.host_budget),
             need_text("device", search->device_need, search_options.device_budget));
  print_search(stderr, *search);
  print_timing(stderr, search->timed);
  fmt::print("{}\n", zero::estimate::to_short_json(search->chosen.config));
  return done;
}

}  // namespace

ExitStatus search_config(const EstimateOptions& options) {
  auto model = zero::estimate::NamedModel::load(*options.model);
  if (!model) return fail(model.error());
  const auto search_options = search_options_of(options);
  if (!search_options) return fail(search_options.error());
  if (search_options->base.optimizer.type == cpu_adam::Optimizer::muon) {
    if (const auto used = model->use_muon(); !used) return fail(used.error());
  }
  if (options.machine) return search_by_seconds(options, *search_options, *model);
  print_notes(model->notes);
  return search_by_bytes(*search_options, model->layout);
}

}  // namespace penstock::tool
