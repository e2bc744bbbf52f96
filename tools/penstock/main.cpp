#include "command.hpp"

#include <exception>

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

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? done : bad_usage;
  }
  // Writing to a full disk or a closed pipe must not exit with success.
  if (std::fflush(stdout) != 0 && status == done) {
    fmt::print(stderr, "error: standard output cannot be written\n");
    return failed;
  }
  return status;
}

}  // namespace
}  // namespace penstock::tool

int main(int argc, char** argv) {
  try {
    return penstock::tool::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return penstock::tool::failed;
  }
}
