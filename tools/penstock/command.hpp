#pragma once

#include <penstock/base/result.hpp>

#include <fmt/core.h>
#include <json/json.h>
#include <CLI/CLI.hpp>
#include <cstdio>

namespace penstock::tool {

/// What the program returns to the shell.
enum ExitStatus : int {
  done = 0,
  failed = 1,
  bad_usage = 2,  ///< of the command line or of a configuration
};

// Each adds its command to `app`; running it sets `status`.
void add_config_command(CLI::App& app, ExitStatus& status);
void add_doctor_command(CLI::App& app, ExitStatus& status);
void add_estimate_command(CLI::App& app, ExitStatus& status);
void add_tune_command(CLI::App& app, ExitStatus& status);

/// Prints the error on standard error and says which status it means.
inline ExitStatus fail(const Error& error) {
  fmt::print(stderr, "error: {}\n", error.message());
  const bool usage = error.code() == ErrorCode::invalid_config ||
                     error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::unsupported;
  return usage ? bad_usage : failed;
}

/// Numbers as they were written, 0.1 rather than 0.10000000000000001; on one line without an indentation.
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
