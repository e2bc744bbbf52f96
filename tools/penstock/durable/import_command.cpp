#include "durable/progress.hpp"

#include "command.hpp"
#include "measure/command_line.hpp"
#include "zero/estimate/layout_file.hpp"
#include "zero/exchange/import_states.hpp"

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace penstock::tool {

namespace {

struct ImportOptions {
  std::filesystem::path states, config;
  std::vector<std::filesystem::path> directories;
  std::optional<std::filesystem::path> layout;
  std::uint32_t ranks = 1;
  bool as_json = false;
};

std::string text_of(const std::vector<std::filesystem::path>& directories) {
  std::string text;
  for (const std::filesystem::path& one : directories) text += (text.empty() ? "" : ", ") + one.string();
  return text;
}

/// Errors: invalid_argument, if the run of the configuration would look elsewhere.
Result<void> check_directories(const ImportOptions& options, const zero::Config& config) {
  const auto of = [](const std::vector<std::filesystem::path>& directories) {
    std::set<std::filesystem::path> absolute;
    for (const auto& one : directories)
      absolute.insert((std::filesystem::absolute(one) / "").lexically_normal());
    return absolute;
  };
  const auto& named = config.penstock.durable_directories;
  if (named.empty() || of(named) == of(options.directories)) return ok();
  return Error::invalid_argument("penstock import")
      .object("DIR")
      .reason("the configuration names other directories, in which the run would look for its states")
      .wanted(text_of(named))
      .got(text_of(options.directories))
      .advice("name those of penstock.durable_directory, or remove that key");
}

ExitStatus import_states(const ImportOptions& options) {
  const auto config = zero::Config::from_file(options.config, options.ranks);
  if (!config) return fail(config.error());
  if (const auto checked = check_directories(options, *config); !checked) return fail(checked.error());
  zero::exchange::ImportOptions what{
      .states = options.states, .config = *config, .directories = options.directories};
  if (options.layout) {
    auto layout = zero::estimate::LayoutFile::read(*options.layout);
    if (!layout) return fail(layout.error());
    what.layout = *std::move(layout);
  }
  const TimePoint began = Clock::steady().now();
  std::optional<Progress> progress;
  what.progress = [&progress](ByteCount bytes, ByteCount all) {
    if (!progress) progress.emplace(all);
    (*progress)(bytes);
  };
  const auto report = zero::exchange::import_states(what);
  progress.reset();
  if (!report) return fail(report.error());
  const double time = seconds(Clock::steady().now() - began);
  if (options.as_json) {
    Json::Value json;
    json["step"] = Json::UInt64{report->step};
    json["parameters"] = Json::UInt64{report->parameters};
    json["bytes"] = Json::UInt64{report->bytes.value()};
    json["seconds"] = time;
    print_json(json);
  } else {
    fmt::print("step {}: {} parameters, masters and moments of {}, committed in {:.1f} s\n", report->step,
               report->parameters, to_string(report->bytes), time);
  }
  return done;
}

}  // namespace

void add_import_command(measure::CommandLine& app, ExitStatus& status) {
  auto options = std::make_shared<ImportOptions>();
  measure::CommandLine command = app.add_command(
      "import", "Make a durable directory from what penstock export --states wrote, to resume a run in it");
  command
      .add_option("states", options->states,
                  "A directory with states.safetensors or its index, or one of these files")
      .required()
      .type_name("STATES");
  command.add_option("config", options->config, "The run's ds_config.json").required().type_name("CONFIG");
  command
      .add_option("directory", options->directories,
                  "The new durable directories, those that the configuration names")
      .required()
      .type_name("DIR");
  command.add_option("--layout", options->layout,
                     "The layout of the trainer's model, if it has other units than the states' one");
  command.add_option("--ranks", options->ranks, "Of the run, for the configuration's batch sizes")
      .range(1u, 1u << 20)
      .show_default();
  command.add_flag("--json", options->as_json, "An object instead of text");
  command.on_run([options, &status] { status = import_states(*options); });
}

}  // namespace penstock::tool
