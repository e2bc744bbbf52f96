#include "durable/found_commits.hpp"

#include "command.hpp"
#include "measure/command_line.hpp"

#include <map>
#include <memory>
#include <set>

namespace penstock::tool {

namespace {

struct InspectOptions {
  std::vector<std::filesystem::path> directories;
  bool as_json = false;
};

struct Totals {
  ByteCount states, parameters;
  std::uint64_t tensors = 0;
  std::set<std::string> files;
};
Totals totals_of(const FoundCommit& commit) {
  Totals totals;
  for (const zero::Manifest& manifest : commit.manifests) {
    for (const zero::CommittedTensor& tensor : manifest.tensors) {
      (tensor.key.role == tiers::Purpose::optimizer_tile ? totals.states : totals.parameters) += tensor.size;
      totals.files.insert(manifest.files[tensor.file]);
      ++totals.tensors;
    }
  }
  return totals;
}

std::uint64_t parameter_count(const zero::ModelLayout& model) {
  std::uint64_t count = 0;
  for (const zero::UnitLayout& unit : model.units) count += unit.parameters.size();
  return count;
}

/// What a run makes of a commit; `last`: the one that it continues from, if there is one.
std::string use_of(const FoundCommit& commit, const FoundCommit* last) {
  if (&commit == last) return "";
  if (last != nullptr) return fmt::format("not used: a run continues from commit {}", last->generation);
  if (commit.is_complete()) return "not used: no run continues from the directory as it is";
  return "incomplete: a run continues from it only if the other ranks' directories have the rest";
}

void print_commit(const FoundCommit& commit, const FoundCommit* last) {
  const zero::Manifest& first = commit.manifests.front();
  const Totals totals = totals_of(commit);
  fmt::print("commit {} of engine {}: step {}, {} skipped; {} of {} ranks\n", commit.generation,
             commit.engine, first.completed_steps, first.skipped_steps, commit.manifests.size(), first.ranks);
  if (const std::string use = use_of(commit, last); !use.empty()) fmt::print("  {}\n", use);
  fmt::print("  model   {} units, {} parameters, {} elements in {}\n", first.model.units.size(),
             parameter_count(first.model), first.model.element_count().value(), to_string(first.dtype));
  fmt::print("  states  {} in {}: {} in {} tensors, with parameters {}\n", to_string(first.optimizer),
             to_string(first.format), to_string(totals.states), totals.tensors, to_string(totals.parameters));
  fmt::print("  scale   {}\n", first.loss_scaler.scale);
  for (const zero::Manifest& manifest : commit.manifests) {
    if (!manifest.client.empty())
      fmt::print("  client  {} bytes of rank {}\n", manifest.client.size(), manifest.rank);
  }
  for (const std::string& file : totals.files) fmt::print("  file    {}\n", file);
}

Json::Value json_of(const FoundCommit& commit, const FoundCommit* last) {
  const zero::Manifest& first = commit.manifests.front();
  const Totals totals = totals_of(commit);
  Json::Value json;
  json["engine"] = commit.engine;
  json["generation"] = Json::UInt64{commit.generation};
  json["complete"] = commit.is_complete();
  json["last"] = &commit == last;
  json["step"] = Json::UInt64{first.completed_steps};
  json["skipped_steps"] = Json::UInt64{first.skipped_steps};
  json["ranks"] = first.ranks;
  json["ranks_found"] = Json::UInt64{commit.manifests.size()};
  json["units"] = Json::UInt64{first.model.units.size()};
  json["parameters"] = Json::UInt64{parameter_count(first.model)};
  json["elements"] = Json::UInt64{first.model.element_count().value()};
  json["dtype"] = std::string(to_string(first.dtype));
  json["optimizer"] = std::string(to_string(first.optimizer));
  json["state_format"] = std::string(to_string(first.format));
  json["loss_scale"] = first.loss_scaler.scale;
  json["state_bytes"] = Json::UInt64{totals.states.value()};
  json["parameter_bytes"] = Json::UInt64{totals.parameters.value()};
  json["tensors"] = Json::UInt64{totals.tensors};
  json["files"] = Json::Value(Json::arrayValue);
  for (const std::string& file : totals.files) json["files"].append(file);
  json["client_bytes"] = Json::Value(Json::arrayValue);
  for (const zero::Manifest& manifest : commit.manifests)
    json["client_bytes"].append(Json::UInt64{manifest.client.size()});
  return json;
}

ExitStatus inspect(const InspectOptions& options) {
  const auto found = find_commits(options.directories);
  if (!found) return fail_to_find(found.error());
  std::map<std::uint32_t, const FoundCommit*> last;  // by engine; null without one
  std::vector<Error> errors = found->damaged;
  for (const std::uint32_t engine : found->engines()) {
    const auto one = last_commit(*found, engine);
    last[engine] = one ? *one : nullptr;
    if (!one) errors.push_back(one.error());
  }
  if (options.as_json) {
    Json::Value json;
    json["commits"] = Json::Value(Json::arrayValue);
    for (const FoundCommit& commit : found->commits)
      json["commits"].append(json_of(commit, last[commit.engine]));
    json["damaged"] = Json::Value(Json::arrayValue);
    for (const Error& error : found->damaged) json["damaged"].append(error.message());
    print_json(json);
  } else {
    for (const FoundCommit& commit : found->commits) print_commit(commit, last[commit.engine]);
  }
  for (const Error& error : errors) (void)fail(error);
  return errors.empty() ? done : failed;
}

}  // namespace

void add_inspect_command(measure::CommandLine& app, ExitStatus& status) {
  auto options = std::make_shared<InspectOptions>();
  measure::CommandLine command = app.add_command("inspect", "Print the commits in a durable directory");
  command.add_option("directory", options->directories, "The run's durable directories")
      .required()
      .type_name("DIR");
  command.add_flag("--json", options->as_json, "An object instead of text");
  command.on_run([options, &status] { status = inspect(*options); });
}

}  // namespace penstock::tool
