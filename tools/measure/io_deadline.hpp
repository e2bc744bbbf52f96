#pragma once

#include <penstock/base/time.hpp>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <string>

namespace penstock::measure {

/// Adds --io-deadline, which sets `deadline`. Its value in `deadline` is the default; it outlives the parsing.
inline CLI::Option* add_io_deadline(CLI::App& app, TimePoint& deadline) {
  const auto set = [&deadline](std::uint32_t seconds) { deadline = std::chrono::seconds(seconds); };
  return app
      .add_option_function<std::uint32_t>(
          "--io-deadline", set,
          "penstock.io_deadline_seconds here: time limit of a request, and of "
          "each file operation at the start")
      ->type_name("SECONDS")
      ->default_str(std::to_string(std::chrono::duration_cast<std::chrono::seconds>(deadline).count()))
      ->check(CLI::Range(1u, 86400u));
}

}  // namespace penstock::measure
