#include "command.hpp"
#include "doctor_findings.hpp"

#include <algorithm>
#include <memory>

namespace penstock::tool {

namespace {

struct DoctorOptions {
  std::vector<std::string> paths;
  bool json = false;
};

Json::Value to_json(const std::vector<Finding>& findings) {
  Json::Value json(Json::arrayValue);
  for (const Finding& finding : findings) {
    Json::Value entry;
    entry["capability"] = finding.capability;
    entry["state"] = to_string(finding.state);
    entry["found"] = finding.found;
    entry["consequence"] = finding.consequence;
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
    if (!finding.consequence.empty()) fmt::print("; {}", finding.consequence);
    if (!finding.remedy.empty()) fmt::print("; try: {}", finding.remedy);
    fmt::print("\n");
  }
}

ExitStatus examine(const DoctorOptions& options) {
  std::vector<Finding> findings = examine_machine();
  for (const std::string& path : options.paths) {
    for (Finding& finding : examine_path(path)) findings.push_back(std::move(finding));
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

void add_doctor_command(CLI::App& app, ExitStatus& status) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = app.add_subcommand(
      "doctor", "What this machine can do for swapping, what follows from it and what to do about it");
  command->add_option("--path", options->paths, "A directory that is to hold swap files; may be repeated")
      ->type_name("DIR");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options, &status] { status = examine(*options); });
}

}  // namespace penstock::tool
