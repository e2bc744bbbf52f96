#include <penstock/zero/config/config.hpp>

#include "command.hpp"

#include <memory>

namespace penstock::tool {

namespace {

struct CheckOptions {
  std::string file;
  std::uint32_t world_size = 1;
  bool here = false;
};

ExitStatus check(const CheckOptions& options) {
  const auto config = zero::Config::from_file(options.file, options.world_size);
  if (!config) {
    fail(config.error());
    return bad_usage;
  }
  for (const std::string& note : config->notes) fmt::print(stderr, "note: {}\n", note);

  const auto usable = config->check_paths();
  if (!usable && options.here) return fail(usable.error());
  if (!usable) fmt::print(stderr, "note: {}\n", usable.error().message());
  fmt::print("{}\n", config->to_json());
  return done;
}

}  // namespace

void add_config_command(CLI::App& app, ExitStatus& status) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* config = app.add_subcommand("config", "Work with a ds_config.json");
  config->require_subcommand(1);
  CLI::App* command = config->add_subcommand(
      "check", "Print the effective configuration as JSON, or every error with key path and line");
  command->add_option("file", options->file, "The configuration")->required()->type_name("FILE");
  command->add_option("--world-size", options->world_size, "Ranks of the run")
      ->check(CLI::Range(1u, 1u << 24))
      ->capture_default_str();
  command->add_flag("--here", options->here,
                    "The run is on this machine: a directory of nvme_path that cannot be used is an error");
  command->callback([options, &status] { status = check(*options); });
}

}  // namespace penstock::tool
