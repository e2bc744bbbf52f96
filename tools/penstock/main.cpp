#include "command.hpp"

#include "measure/command_line.hpp"
#include "measure/run_main.hpp"

#include <cstdio>

namespace penstock::tool {
namespace {

int run(int argc, char** argv) {
  measure::CommandLine app("The storage tier under a large-model trainer.", "penstock");
  app.version("--version", "penstock " PENSTOCK_VERSION);
  app.require_command();
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

  if (const auto unknown = app.unknown_command(argc, argv)) {
    const char* const of = unknown->of.c_str();
    std::fprintf(stderr, "error: %s has no command %s\n  try     %s --help\n", of, unknown->name.c_str(), of);
    return bad_usage;
  }
  return app.parse(argc, argv).value_or(status);
}

}  // namespace
}  // namespace penstock::tool

int main(int argc, char** argv) {
  return penstock::measure::run_main([&] { return penstock::tool::run(argc, argv); });
}
