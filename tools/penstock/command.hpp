#pragma once

#include "zero/config/value.hpp"

#include <penstock/base/dtype.hpp>
#include <penstock/base/result.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/zero/config/config.hpp>

#include <fmt/core.h>
#include <json/json.h>
#include <cerrno>
#include <cstdio>
#include <string>
#include <vector>

namespace penstock::measure {
class CommandLine;
}  // namespace penstock::measure

namespace penstock::tool {

/// The program's exit status.
enum ExitStatus : int {
  done = 0,
  failed = 1,
  bad_usage = 2,  ///< invalid command line or configuration
};

// Each adds its command to `app`; running it sets `status`.
void add_config_command(measure::CommandLine& app, ExitStatus& status);
void add_doctor_command(measure::CommandLine& app, ExitStatus& status);
void add_estimate_command(measure::CommandLine& app, ExitStatus& status);
/// A command of `config`.
void add_schedule_command(measure::CommandLine& config, ExitStatus& status);
void add_export_command(measure::CommandLine& app, ExitStatus& status);
void add_import_command(measure::CommandLine& app, ExitStatus& status);
void add_inspect_command(measure::CommandLine& app, ExitStatus& status);
void add_simulate_command(measure::CommandLine& app, ExitStatus& status);
void add_trace_command(measure::CommandLine& app, ExitStatus& status);
void add_tune_command(measure::CommandLine& app, ExitStatus& status);
void add_verify_command(measure::CommandLine& app, ExitStatus& status);

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

/// The same of a search in a directory: one that does not exist, or is none, is a wrong argument.
inline ExitStatus fail_to_find(const Error& error) {
  const ExitStatus status = fail(error);
  const bool is_missing = error.code() == ErrorCode::not_found || error.os_error() == ENOTDIR;
  return is_missing ? bad_usage : status;
}

/// A whole number of bytes, at least `least`: "64GiB". Errors: invalid_argument, naming the option.
inline Result<ByteCount> parse_size(const char* operation, const char* option, const std::string& text,
                                    ByteCount least = 1_B) {
  const auto bytes = zero::config::parse_bytes(text);
  if (bytes && ByteCount(*bytes) >= least) return ByteCount(*bytes);
  return Error::invalid_argument(operation)
      .object(option)
      .wanted("a whole number of bytes from " + to_string(least) +
              " to 16384 PiB, such as 64GiB (B, KiB, MiB, GiB, TiB, KB, MB, GB, TB)")
      .got(text);
}

/// Says where penstock.device_states has no effect.
inline void note_kept_states(const zero::Config& config, tiers::DeviceMemory memory) {
  if (config.penstock.device_states.is_zero() || memory == tiers::DeviceMemory::separate) return;
  fmt::print(stderr, "note: penstock.device_states: has no effect: the device's memory is host memory\n");
}

/// Of "fp32", "bf16" or "fp16".
inline DType dtype_of(const std::string& name) {
  return name == "fp32" ? DType::fp32 : name == "fp16" ? DType::fp16 : DType::bf16;
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
