#include "estimate/model_report.hpp"
#include "zero/layout/rank_nodes.hpp"

namespace penstock::tool {

namespace {

using zero::estimate::Candidate;
using zero::estimate::ConfigSearch;
using zero::estimate::SearchOptions;

constexpr const char* operation = "penstock estimate";

Result<SearchOptions> search_options_of(const EstimateOptions& options) {
  PENSTOCK_TRY_ASSIGN(zero::Config base, config_of(options));
  SearchOptions search{.base = std::move(base), .run = run_of(options), .lossy = options.lossy};
  if (!search.base.penstock.node_budgets.empty())
    fmt::print(stderr, "note: penstock.node_budgets: the search replaces it by penstock.host_budget\n");
  note_kept_states(search.base, search.run.device_memory);
  // What is not given is limited by the configuration.
  // A plan has the same part for all ranks.
  search.host_budget =
      zero::host_budget_of_rank(search.base, search.run.ranks_per_node) * search.run.ranks_per_node;
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

ExitStatus print_best(const ConfigSearch& search, const SearchOptions& options) {
  const Candidate& best = search.candidates[*search.best];
  explain(search, options);
  if (lacks_path(best.config)) {
    return fail(
        Error::invalid_argument(operation)
            .reason("the cheapest configuration that fits has swap files, and no directory for them is given")
            .object(best.name())
            .wanted("--path DIR, once for each drive, or nvme_path in --config")
            .got("neither")
            .advice("give a directory, or larger budgets"));
  }
  fmt::print("{}\n", zero::estimate::to_short_json(best.config));
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
  print_notes(model->notes);
  const auto search = ConfigSearch::run(*search_options, model->layout);
  if (!search) return fail(search.error());
  return search->best ? print_best(*search, *search_options) : fail(search->nothing_fits(*search_options));
}

}  // namespace penstock::tool
