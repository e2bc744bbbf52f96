#pragma once

#include <penstock/base/result.hpp>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

namespace penstock::measure {

/// Parses the command line. If the program must end, returns its exit status: 0 after --help, 2 after an error, which
/// has been printed.
[[nodiscard]] inline std::optional<int> parse(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return std::nullopt;
}

/// Like CLI::Range, which lets NaN pass.
[[nodiscard]] inline CLI::Validator number_from(double least, double most) {
  const std::string range =
      "FLOAT in [" + CLI::detail::to_string(least) + " - " + CLI::detail::to_string(most) + "]";
  return CLI::Validator(
      [=](const std::string& text) {
        double number = 0;
        const bool is_within = CLI::detail::lexical_cast(text, number) && number >= least && number <= most;
        return is_within ? std::string() : "Value " + text + " not in " + range;
      },
      range);
}

/// Adds --rounds. The value in `rounds` is the default.
inline void add_rounds(CLI::App& app, std::uint32_t& rounds) {
  app.add_option("--rounds", rounds, "timed rounds")->capture_default_str()->check(CLI::Range(1, 1000));
}

/// The exit status of a program after `done`: 0, or 2 where its arguments were wrong, or 1. Prints the error.
[[nodiscard]] inline int exit_status(const Result<void>& done) {
  if (done) return 0;
  std::fprintf(stderr, "error: %s\n", done.error().message().c_str());
  return done.error().code() == ErrorCode::invalid_argument ? 2 : 1;
}

}  // namespace penstock::measure
