#include "command.hpp"

#include "measure/command_line.hpp"
#include "measure/run_main.hpp"

#include <cstdio>

namespace penstock::tool {
namespace {

int run(int argc, char** argv) {
  CLI::App app("The storage tier under a large-model trainer.", "penstock");
  app.set_version_flag("--version", "penstock " PENSTOCK_VERSION);
  app.require_subcommand(1);
  ExitStatus status = done;
  add_estimate_command(app, status);
  add_config_command(app, status);
  add_doctor_command(app, status);
  add_tune_command(app, status);
  add_inspect_command(app, status);
  add_verify_command(app, status);
  add_export_command(app, status);
  add_import_command(app, status);

  const auto named = [&](const CLI::App* command) { return command->check_name(argv[1]); };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(named).empty()) {
    std::fprintf(stderr, "error: penstock has no command %s\n  try     penstock --help\n", argv[1]);
    return bad_usage;
  }
  return measure::parse(app, argc, argv).value_or(status);
}

}  // namespace
}  // namespace penstock::tool

int main(int argc, char** argv) {
  return penstock::measure::run_main([&] { return penstock::tool::run(argc, argv); });
}
