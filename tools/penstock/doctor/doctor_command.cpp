#include "command.hpp"
#include "findings.hpp"
#include "measure/command_line.hpp"

#include <algorithm>
#include <memory>

namespace penstock::tool {

namespace {

struct DoctorOptions {
  std::vector<std::filesystem::path> paths;
  std::string config;
  std::uint32_t world_size = 1;
  TimePoint io_deadline = swap::PathOptions().deadline;
  bool io_deadline_given = false;  // else the configuration's is used for its directories
  bool json = false;
};

Json::Value to_json(const std::vector<Finding>& findings) {
  Json::Value json(Json::arrayValue);
  for (const Finding& finding : findings) {
    Json::Value entry;
    entry["capability"] = finding.capability;
    entry["state"] = to_string(finding.state);
    entry["found"] = finding.found;
    entry["why"] = finding.why;
    entry["remedy"] = finding.remedy;
    json.append(entry);
  }
  return json;
}

void print_lines(const std::vector<Finding>& findings) {
  std::size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.capability.size());
  for (const Finding& finding : findings) {
    fmt::print("{:<9} {:<{}}  {}", to_string(finding.state), finding.capability, width, finding.found);
    if (!finding.why.empty()) fmt::print("; {}", finding.why);
    if (!finding.remedy.empty()) fmt::print("; try: {}", finding.remedy);
    fmt::print("\n");
  }
}

ExitStatus examine(const DoctorOptions& options) {
  std::vector<Finding> findings = examine_machine();
  std::vector<swap::PathOptions> paths;
  for (const std::filesystem::path& directory : options.paths) {
    paths.push_back({.directory = directory, .deadline = options.io_deadline});
  }
  const auto append = [&](const std::vector<Finding>& more) {
    findings.insert(findings.end(), more.begin(), more.end());
  };
  if (!options.config.empty()) append(examine_config(options.config, options.world_size, paths));
  for (swap::PathOptions& path : paths) {
    if (options.io_deadline_given) path.deadline = options.io_deadline;
    path.capacity = 4_MiB;  // enough to probe direct I/O and the engine
    append(examine_path(path));
  }
  if (options.json)
    print_json(to_json(findings));
  else
    print_lines(findings);
  const bool works = std::none_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.state == Finding::State::unusable;
  });
  return works ? done : failed;
}

}  // namespace

void add_doctor_command(measure::CommandLine& app, ExitStatus& status) {
  auto options = std::make_shared<DoctorOptions>();
  measure::CommandLine command = app.add_command(
      "doctor",
      "Report which features for swapping this machine has, what a missing one costs and how to get it");
  command.add_option("--path", options->paths, "A directory for swap files; may be repeated")
      .type_name("DIR");
  command
      .add_option("--config", options->config,
                  "A ds_config.json; its settings and paths are checked on this machine")
      .type_name("FILE");
  command.add_option("--world-size", options->world_size, "Ranks of the configured run")
      .range(1u, 1u << 24)
      .show_default();
  command.add_flag("--json", options->json, "Print JSON");
  const measure::CommandOption io_deadline = measure::add_io_deadline(command, options->io_deadline);
  command.on_run([options, io_deadline, &status] {
    options->io_deadline_given = io_deadline.count() > 0;
    status = examine(*options);
  });
}

}  // namespace penstock::tool
