#include "estimate/arguments.hpp"
#include "measure/command_line.hpp"
#include "zero/estimate/model_presets.hpp"

#include <memory>

namespace penstock::tool {

namespace {

ExitStatus estimate(const EstimateOptions& options) {
  if (options.presets) return list_presets(options.json);
  if (!options.model) return estimate_sizes(options);
  return options.searches() ? search_config(options) : estimate_model(options);
}

}  // namespace

ExitStatus list_presets(bool as_json) {
  Json::Value list(Json::arrayValue);
  for (const zero::estimate::ModelShape& shape : zero::estimate::model_presets()) {
    const ElementCount count = zero::estimate::layout_of(shape).element_count();
    if (!as_json) {
      fmt::print("{:<16}{:>18}  {}\n", shape.name, to_string(count),
                 shape.alias.empty() ? "" : fmt::format("also {}", shape.alias));
      continue;
    }
    Json::Value& row = list.append(Json::objectValue);
    row["name"] = json_string(shape.name);
    if (!shape.alias.empty()) row["alias"] = json_string(shape.alias);
    row["parameters"] = Json::UInt64(count.value());
    row["source"] = json_string(shape.source);
  }
  if (as_json) print_json(list);
  return done;
}

void add_estimate_command(measure::CommandLine& app, ExitStatus& status) {
  auto options = std::make_shared<EstimateOptions>();
  measure::CommandLine command = app.add_command(
      "estimate",
      "Estimate the memory, the disk space and the disk wear of a run, or find a configuration that fits");
  add_estimate_options(command, *options);
  command.on_run([options, command, &status] {
    check_estimate_options(command, *options);
    status = estimate(*options);
  });
}

}  // namespace penstock::tool
