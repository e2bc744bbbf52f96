#include "findings.hpp"

#include <penstock/tiers/memory/memory_limits.hpp>

#include <algorithm>
#include <chrono>

namespace penstock::tool {

namespace {

using State = Finding::State;

std::string how_to_estimate(const std::filesystem::path& file) {
  return "penstock estimate --config " + file.string() + " --model MODEL";
}

Finding examine_host_budget(const zero::Config& config, const std::filesystem::path& file) {
  Finding finding{.capability = "host budget of " + file.string()};
  ByteCount budget = config.penstock.host_budget;
  const auto& nodes = config.penstock.node_budgets;
  const auto& ranks = config.penstock.rank_nodes;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    // One on which no rank runs is not used.
    if (std::find(ranks.begin(), ranks.end(), node) != ranks.end()) budget += nodes[node];
  }
  const tiers::MemoryLimit memory = tiers::memory_limit();
  if (budget.is_zero()) {
    finding.state = State::unknown;
    finding.found = "not given";
    finding.why = "it is planned from the model, which is unknown here";
    finding.remedy = how_to_estimate(file);
    return finding;
  }
  finding.found = to_string(budget) + ", and " + to_string(memory.available) + " are available, limited by " +
                  memory.file;
  if (budget <= memory.available) return finding;
  finding.state = State::unusable;
  finding.why = "the run's memory allocation would fail";
  finding.remedy = "lower penstock.host_budget or node_budgets, or stop other programs that use memory";
  return finding;
}

}  // namespace

std::vector<Finding> examine_config(const std::filesystem::path& file, std::uint32_t world_size,
                                    std::vector<swap::PathOptions>& paths) {
  const std::string of = " of " + file.string();
  const auto config = zero::Config::from_file(file, world_size);
  if (!config) {
    return {{State::unusable, "settings" + of, one_line(config.error()), "no run can start with it",
             "correct the named keys; penstock config check FILE prints a line for each"}};
  }
  const auto& directories = config->swap_directories();
  for (const std::filesystem::path& named : directories) {
    // A run makes its durable directory itself.
    std::error_code ignored;
    const bool is_made = config->is_durable() && !std::filesystem::exists(named, ignored);
    const std::filesystem::path directory = is_made ? std::filesystem::absolute(named).parent_path() : named;
    auto path = std::find_if(paths.begin(), paths.end(),
                             [&](const swap::PathOptions& one) { return one.directory == directory; });
    if (path == paths.end()) path = paths.insert(path, {.directory = directory});
    path->request_max = config->aio_block_size;
    path->in_flight_max = config->aio_block_size * config->aio_queue_depth;
    path->deadline = std::chrono::seconds(config->penstock.io_deadline_seconds);
    path->engine = config->penstock.io_engine;
  }
  return {
      {.capability = "settings" + of,
       .found = "stage " + std::to_string(config->stage) + ", " + std::to_string(directories.size()) +
                (directories.size() == 1 ? " directory" : " directories") + " for swap files"},
      examine_host_budget(*config, file),
      {State::unknown, "swap space" + of, "unknown without a model",
       "the size of the swap files depends on the model, so it is not compared with the free space",
       how_to_estimate(file)},
  };
}

}  // namespace penstock::tool
