#pragma once

#include <penstock/base/result.hpp>
#include <penstock/zero/config/config.hpp>

#include <filesystem>
#include <system_error>

namespace penstock::zero {

/// The directory of a monitor's files, which is made. `key`: that of the configuration. Errors: those of making it.
[[nodiscard]] inline Result<std::filesystem::path> make_event_directory(const MonitorConfig& monitor,
                                                                        const char* key) {
  std::filesystem::path directory = std::filesystem::path(monitor.output_path) / monitor.job_name;
  std::error_code error;
  if (!directory.empty()) std::filesystem::create_directories(directory, error);
  // The trainer may change its working directory.
  if (!error) directory = std::filesystem::current_path(error) / directory;
  if (!error) return directory;
  return Error::from_errno("Rank::create", error.value())
      .object(directory.string())
      .note(std::string("where   ") + key + ".output_path")
      .advice("name a directory that can be made there");
}

}  // namespace penstock::zero
