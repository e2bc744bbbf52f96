#pragma once

#include <penstock/base/result.hpp>

#include <fmt/core.h>
#include <json/json.h>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

namespace penstock::tool {

/// The program's exit status.
enum ExitStatus : int {
  done = 0,
  failed = 1,
  bad_usage = 2,  ///< invalid command line or configuration
};

// Each adds its command to `app`; running it sets `status`.
void add_config_command(CLI::App& app, ExitStatus& status);
void add_doctor_command(CLI::App& app, ExitStatus& status);
void add_estimate_command(CLI::App& app, ExitStatus& status);
/// A command of `config`.
void add_schedule_command(CLI::App& config, ExitStatus& status);
void add_inspect_command(CLI::App& app, ExitStatus& status);
void add_tune_command(CLI::App& app, ExitStatus& status);
void add_verify_command(CLI::App& app, ExitStatus& status);

/// Prints them to standard error.
inline void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) fmt::print(stderr, "note: {}\n", note);
}

/// Prints the error to standard error and returns the exit status for it.
inline ExitStatus fail(const Error& error) {
  fmt::print(stderr, "error: {}\n", error.message());
  const bool usage = error.code() == ErrorCode::invalid_config ||
                     error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::unsupported;
  return usage ? bad_usage : failed;
}

/// Prints numbers with the digits needed, 0.1 instead of 0.10000000000000001. On one line if `indentation` is empty.
inline std::string json_text(const Json::Value& json, const char* indentation) {
  Json::StreamWriterBuilder writer;
  writer["indentation"] = indentation;
  writer["precision"] = 15;
  return Json::writeString(writer, json);
}

inline void print_json(const Json::Value& json) {
  fmt::print("{}\n", json_text(json, "  "));
}

}  // namespace penstock::tool
