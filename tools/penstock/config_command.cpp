#include <penstock/zero/config/config_file.hpp>

#include "command.hpp"
#include "config_page.hpp"
#include "measure/command_line.hpp"
#include "swap/timeline.hpp"
#include "zero/commit/durable_directories.hpp"
#include "zero/report/report_file.hpp"

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <system_error>
#include <utility>

namespace penstock::tool {

namespace {

struct CheckOptions {
  std::string file;
  zero::ConfigFile::Options reading;
  bool here = false, as_json = false;
};

/// What a run refuses of its durable directories. Errors: those of zero::check_directories().
Result<void> check_durable(const zero::Config& config) {
  zero::RankDirectory::Options options;
  PENSTOCK_TRY_ASSIGN(options.directories, zero::absolute_names(config.penstock.durable_directories));
  PENSTOCK_TRY(zero::check_directories(options));
  PENSTOCK_TRY(zero::manifests_first(options));
  return ok();
}

/// Whether this process may write to `file`, or make it: the part of the name that is there is looked at.
Result<void> check_writable(const std::filesystem::path& file, bool is_directory, const char* key) {
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(file, error);
  const bool exists = std::filesystem::exists(there, error);
  // Missing directories are made, but not those of a file.
  if (!exists) there = there.parent_path();
  while (is_directory && there.has_relative_path() && !std::filesystem::exists(there, error))
    there = there.parent_path();
  const auto refused = [&](Error cause) { return std::move(cause).object(there.string()).where(key); };
  const bool wants_directory = is_directory || !exists;
  const auto status = std::filesystem::status(there, error);
  const bool is_wanted =
      wants_directory ? std::filesystem::is_directory(status) : std::filesystem::is_regular_file(status);
  if (std::filesystem::exists(status) && !is_wanted) {
    const char* const found = std::filesystem::is_directory(status)      ? "a directory"
                              : std::filesystem::is_regular_file(status) ? "a file"
                                                                         : "a device, a pipe or a socket";
    return refused(
        Error::invalid_config("config check").wanted(wants_directory ? "a directory" : "a file").got(found));
  }
  if (::access(there.c_str(), wants_directory ? W_OK | X_OK : W_OK) == 0) return ok();
  return refused(Error::from_errno("config check", errno));
}

/// What a run of so many ranks refuses of the files that it would write: reports, the timeline, and those of monitors.
Result<void> check_reports(const zero::Config& config, std::uint32_t ranks) {
  const std::filesystem::path &report = config.penstock.report_file,
                              &timeline = config.penstock.timeline_file;
  PENSTOCK_TRY(zero::check_different(report, timeline));
  const auto of_first = [ranks](const std::filesystem::path& file) {
    return zero::name_of_rank(file, 0, ranks);
  };
  if (!report.empty()) {
    if (auto may_write = zero::check_report_file(of_first(report)); !may_write)
      return std::move(may_write).error().where("penstock.report_file");
  }
  if (!timeline.empty()) {
    PENSTOCK_TRY(check_writable(of_first(timeline), false, "penstock.timeline_file"));
    if (auto may_write = swap::Timeline::check(of_first(timeline)); !may_write)
      return std::move(may_write).error().where("penstock.timeline_file");
  }
  for (const auto& [monitor, key] : {std::pair(&config.csv_monitor, "csv_monitor.output_path"),
                                     {&config.tensorboard, "tensorboard.output_path"}}) {
    if (!monitor->enabled) continue;
    const auto directory = std::filesystem::path(monitor->output_path) / monitor->job_name;
    PENSTOCK_TRY(check_writable(directory.empty() ? "." : directory, true, key));
  }
  return ok();
}

void print_with_origins(const zero::ConfigFile& file) {
  Json::Value json, rows(Json::arrayValue);
  for (const zero::KeyOrigin& origin : file.origins) {
    Json::Value& row = rows.append(Json::objectValue);
    row["key"] = origin.path;
    row["from"] = origin.from();
    if (origin.value.empty())
      row["in_words"] = origin.in_words;
    else
      std::istringstream(origin.value) >> Json::Path(origin.path).make(json);
  }
  json["origins"] = rows;
  json["notes"] = Json::Value(Json::arrayValue);
  for (const std::string& note : file.config.notes) json["notes"].append(note);
  print_json(json);
}

using Origins = std::map<std::string, const zero::KeyOrigin*>;

/// Prints the members of an object, each value with a comment that says where it comes from. What has no value is a
/// comment as a whole.
void print_commented(const Json::Value& object, const std::string& block, const Origins& origins,
                     const std::string& indentation) {
  const auto names = object.getMemberNames();
  const auto is_read = [&](const std::string& name) {
    return object[name].isObject() || !origins.at(block + name)->value.empty();
  };
  const auto last_read = std::find_if(names.rbegin(), names.rend(), is_read);
  for (const std::string& name : names) {
    const std::string path = block + name;
    const char* const comma = last_read != names.rend() && name == *last_read ? "" : ",";
    if (object[name].isObject()) {
      fmt::print("{}\"{}\": {{\n", indentation, name);
      print_commented(object[name], path + ".", origins, indentation + "  ");
      fmt::print("{}}}{}\n", indentation, comma);
      continue;
    }
    const zero::KeyOrigin& origin = *origins.at(path);
    if (!is_read(name)) {
      fmt::print("{}// \"{}\": {}  // {}\n", indentation, name, origin.in_words, origin.from());
      continue;
    }
    const bool renamed = !origin.given_as.empty() && origin.given_as != path;
    fmt::print("{}\"{}\": {}{}  // {}{}\n", indentation, name, origin.value, comma, origin.from(),
               renamed ? ", as " + origin.given_as : "");
  }
}

void print_commented(const zero::ConfigFile& file) {
  Origins origins;
  Json::Value keys;  // null, in their blocks
  for (const zero::KeyOrigin& origin : file.origins) {
    origins[origin.path] = &origin;
    Json::Path(origin.path).make(keys) = Json::Value();
  }
  fmt::print("{{\n");
  print_commented(keys, "", origins, "  ");
  fmt::print("}}\n");
}

ExitStatus check(const CheckOptions& options) {
  zero::ConfigFile::Options reading = options.reading;
  reading.explain = true;
  const auto file = zero::ConfigFile::of_argument(options.file, reading);
  if (!file) {
    fail(file.error());
    if (options.as_json) {
      Json::Value json;
      json["error"] = file.error().message();
      print_json(json);
    }
    return bad_usage;
  }
  print_notes(file->config.notes);

  auto usable = file->config.check_paths();
  if (usable) usable = check_durable(file->config);
  if (usable) usable = check_reports(file->config, options.reading.world_size);
  if (!usable && options.here) return fail(usable.error());
  if (!usable) fmt::print(stderr, "note: {}\n", usable.error().message());
  options.as_json ? print_with_origins(*file) : print_commented(*file);
  return done;
}

void print_list(const std::vector<zero::ConfigKey>& keys) {
  Json::Value list(Json::arrayValue);
  for (const zero::ConfigKey& key : keys) {
    Json::Value& row = list.append(Json::objectValue);
    row["key"] = key.path;
    for (const std::string& alias : key.aliases) row["aliases"].append(alias);
    row["takes"] = key.takes;
    row["default"] = key.default_value;
    row["status"] = key.status;
    row["read_by"] = key.read_by;
    row["help"] = key.help;
    row["bytes"] = key.bytes;
  }
  print_json(list);
}

void add_check_command(measure::CommandLine& config, ExitStatus& status) {
  auto options = std::make_shared<CheckOptions>();
  measure::CommandLine command =
      config.add_command("check",
                         "Print the effective configuration with a comment at each value "
                         "that says where it comes from, or every "
                         "error with its key and line");
  command.add_option("file", options->file, "The configuration, or its text in urlsafe base64")
      .required()
      .type_name("FILE");
  command.add_flag("--json", options->as_json,
                   "JSON without comments, with the lists \"origins\" and \"notes\", or with \"error\"");
  command.add_flag(
      "--lenient", options->reading.lenient,
      "Unknown keys in blocks without effect here, and unknown blocks, are notes instead of errors");
  command.add_option("--world-size", options->reading.world_size, "Ranks of the run")
      .range(1u, 1u << 24)
      .show_default();
  command.add_flag(
      "--here", options->here,
      "Also check the directories of nvme_path, and the files of reports and monitors, on this machine");
  command.on_run([options, &status] { status = check(*options); });
}

void add_keys_command(measure::CommandLine& config, ExitStatus& status) {
  auto as_json = std::make_shared<bool>(false);
  measure::CommandLine command = config.add_command(
      "keys",
      "Print every key with its values, its default, its status and the part of the program that reads it");
  command.add_flag("--json", *as_json, "A list of objects instead of a page in Markdown");
  command.on_run([as_json, &status] {
    *as_json ? print_list(zero::config_keys()) : print_config_page(zero::config_keys());
    status = done;
  });
}

}  // namespace

void add_config_command(measure::CommandLine& app, ExitStatus& status) {
  measure::CommandLine config = app.add_command("config", "Work with a ds_config.json");
  config.require_command();
  add_check_command(config, status);
  add_keys_command(config, status);
  add_schedule_command(config, status);
}

}  // namespace penstock::tool
