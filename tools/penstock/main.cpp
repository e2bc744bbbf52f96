#include "command.hpp"

#include "measure/command_line.hpp"
#include "measure/run_main.hpp"

#include <cstdio>
#include <string>

namespace penstock::tool {
namespace {

/// Prints which of the commands there is not. `name`: of `app`, with the commands before it.
bool knows_command(CLI::App& app, const std::string& name, int argc, char** argv) {
  if (argc == 0 || argv[0][0] == '-' || app.get_require_subcommand_min() == 0) return true;
  const auto found =
      app.get_subcommands([&](const CLI::App* command) { return command->check_name(argv[0]); });
  if (!found.empty()) return knows_command(*found.front(), name + " " + argv[0], argc - 1, argv + 1);
  std::fprintf(stderr, "error: %s has no command %s\n  try     %s --help\n", name.c_str(), argv[0],
               name.c_str());
  return false;
}

int run(int argc, char** argv) {
  CLI::App app("The storage tier under a large-model trainer.", "penstock");
  app.set_version_flag("--version", "penstock " PENSTOCK_VERSION);
  app.require_subcommand(1);
  ExitStatus status = done;
  add_estimate_command(app, status);
  add_config_command(app, status);
  add_doctor_command(app, status);
  add_tune_command(app, status);
  add_simulate_command(app, status);
  add_trace_command(app, status);
  add_inspect_command(app, status);
  add_verify_command(app, status);
  add_export_command(app, status);
  add_import_command(app, status);

  if (knows_command(app, "penstock", argc - 1, argv + 1))
    return measure::parse(app, argc, argv).value_or(status);
  return bad_usage;
}

}  // namespace
}  // namespace penstock::tool

int main(int argc, char** argv) {
  return penstock::measure::run_main([&] { return penstock::tool::run(argc, argv); });
}
