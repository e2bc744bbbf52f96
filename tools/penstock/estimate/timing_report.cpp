#include "estimate/timing_report.hpp"

#include "estimate/model_report.hpp"
#include "simulate/simulate_report.hpp"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

namespace penstock::tool {

namespace {

using zero::simulate::PlacementSearch;
using zero::simulate::TimedConfig;
using zero::simulate::Work;

std::string amount_text(const Work& work, double amount) {
  return work.in_operations ? fmt::format("{:.4g}", amount)
                            : to_string(ByteCount(static_cast<std::uint64_t>(amount)));
}

const Work* limit_of(const std::vector<Work>& resources) {
  const auto limit = std::max_element(resources.begin(), resources.end(),
                                      [](const Work& a, const Work& b) { return a.seconds() < b.seconds(); });
  return limit == resources.end() ? nullptr : &*limit;
}

double percent(double seconds, double of) {
  return 100 * (seconds / of - 1);
}

std::string blocks_text(const std::optional<zero::estimate::Recomputation>& recomputation) {
  return recomputation
             ? fmt::format("{} of {}", recomputation->blocks - recomputation->kept, recomputation->blocks)
             : "";
}

}  // namespace

void print_timing(std::FILE* to, const TimedConfig& timed) {
  const zero::simulate::Simulation& simulation = timed.model.simulation;
  const std::vector<Work> resources = timed.model.resources();
  fmt::print(to, "\n{:<40}{:>14}{:>16}{:>14}\n", "a step of a rank works on", "amount", "rate", "seconds");
  for (const Work& work : resources) {
    fmt::print(to, "{:<40}{:>14}{:>16}{:>14}\n", work.what, amount_text(work, work.amount),
               amount_text(work, work.rate) + "/s", time_text(work.seconds()));
  }
  if (const Work* const limit = limit_of(resources))
    fmt::print(to, "limiting resource: {}, {} / {}/s = {}, {:.0f} % of a step of {}\n", limit->what,
               amount_text(*limit, limit->amount), amount_text(*limit, limit->rate),
               time_text(limit->seconds()), 100 * limit->seconds() / timed.seconds(),
               time_text(timed.seconds()));
  fmt::print(
      to, "\n{}\n",
      simulation.changes.empty() ? "no change that was tried shortens the step" : "what would help most");
  for (const auto& [what, seconds] : simulation.changes)
    fmt::print(to, "  {:<52}{:>12}  {:+.0f} %\n", what, time_text(seconds),
               percent(seconds, timed.seconds()));
}

Json::Value timing_json(const TimedConfig& timed) {
  const zero::simulate::Simulation& simulation = timed.model.simulation;
  Json::Value json;
  json["seconds_per_step"] = timed.seconds();
  json["waits_per_step"] = timed.seconds() - simulation.steady.used;
  if (timed.recomputation) json["repeated_forward"] = timed.recomputation->repeated();
  const std::vector<Work> resources = timed.model.resources();
  json["resources"] = Json::arrayValue;
  for (const Work& work : resources) {
    Json::Value& row = json["resources"].append(Json::objectValue);
    row["what"] = work.what;
    row["unit"] = work.in_operations ? "operations" : "bytes";
    row["amount"] = work.amount;
    row["rate"] = work.rate;
    row["seconds"] = work.seconds();
  }
  const Work* const limit = limit_of(resources);
  json["limiting_resource"] = limit != nullptr ? Json::Value(limit->what) : Json::Value();
  json["changes"] = Json::arrayValue;
  for (const auto& [what, seconds] : simulation.changes) {
    Json::Value& row = json["changes"].append(Json::objectValue);
    row["what"] = what;
    row["seconds"] = seconds;
  }
  return json;
}

void print_search(std::FILE* to, const PlacementSearch& search) {
  const bool repeats = search.chosen.recomputation.has_value();
  std::size_t width = 40;
  for (const PlacementSearch::Fitting& one : search.fitting) width = std::max(width, one.name.size());
  fmt::print(to, "\n{:<{}}{:>12}{:>12}{}\n", "candidates that fit, simulated", width, "a step", "it waits",
             repeats ? fmt::format("{:>18}", "blocks repeated") : "");
  for (const PlacementSearch::Fitting& one : search.fitting)
    fmt::print(to, "{:<{}}{:>12}{:>12}{}\n", one.name, width, time_text(one.seconds), time_text(one.waits),
               repeats ? fmt::format("{:>18}", blocks_text(one.recomputation)) : "");
  if (!search.tried.empty())
    fmt::print(to, "\n{:<{}}{:>12}\n", "settings tried, one after the other", width, "a step");
  for (const PlacementSearch::Tried& one : search.tried)
    fmt::print(to, "{:<{}}{:>12}{}\n", one.setting, width,
               one.seconds ? time_text(*one.seconds) : "cannot run", one.kept ? "  kept" : "");
  const auto& recomputation = search.timed.recomputation;
  print_placement(to, search.plan, recomputation ? recomputation->peak : ByteCount());
  if (!recomputation) return;
  const auto& [blocks, kept, peak, room, least] = *recomputation;
  if (kept == blocks)
    fmt::print(to, "all {} blocks keep their activations\n", blocks);
  else
    fmt::print(to, "the last {} of {} blocks keep their activations, the others repeat their forward\n", kept,
               blocks);
}

Json::Value search_json(const PlacementSearch& search) {
  Json::Value json = timing_json(search.timed);
  std::istringstream(zero::estimate::to_short_json(search.chosen.config)) >> json["config"];
  json["chosen"] = search.chosen.name;
  add_placement(json, search.plan,
                search.timed.recomputation ? search.timed.recomputation->peak : ByteCount());
  json["needs"]["host_per_node_bytes"] = Json::UInt64(search.host_need.value());
  json["needs"]["device_per_rank_bytes"] = Json::UInt64(search.device_need.value());
  json["candidates"] = Json::arrayValue;
  for (const PlacementSearch::Fitting& one : search.fitting) {
    Json::Value& row = json["candidates"].append(Json::objectValue);
    row["name"] = one.name;
    row["seconds"] = one.seconds;
    row["waits"] = one.waits;
    if (one.recomputation) row["repeated_forward"] = one.recomputation->repeated();
  }
  json["tried"] = Json::arrayValue;
  for (const PlacementSearch::Tried& one : search.tried) {
    Json::Value& row = json["tried"].append(Json::objectValue);
    row["setting"] = one.setting;
    row["seconds"] = one.seconds ? Json::Value(*one.seconds) : Json::Value();
    row["kept"] = one.kept;
  }
  return json;
}

}  // namespace penstock::tool
