#include "zero/report/event_directory.hpp"

#include <unistd.h>
#include <cerrno>
#include <string>
#include <system_error>

namespace penstock::zero {

namespace {

/// The trainer may change its working directory.
Result<std::filesystem::path> absolute_name(const MonitorConfig& monitor) {
  std::error_code error;
  const std::filesystem::path working = std::filesystem::current_path(error);
  if (error) return Error::from_errno("Rank::create", error.value()).object("the working directory");
  return working / monitor.output_path / monitor.job_name;
}

Error cannot_make(const std::filesystem::path& directory, const char* key, int cause) {
  return Error::from_errno("Rank::create", cause)
      .object(directory.string())
      .note(std::string("where   ") + key + ".output_path")
      .advice("name a directory that can be made there");
}

}  // namespace

Result<void> check_event_directory(const MonitorConfig& monitor, const char* key) {
  PENSTOCK_TRY_ASSIGN(const auto directory, absolute_name(monitor));
  std::filesystem::path nearest = directory.lexically_normal();
  std::error_code unknown;  // then making it tells
  while (std::filesystem::status(nearest, unknown).type() == std::filesystem::file_type::not_found &&
         nearest.has_relative_path())
    nearest = nearest.parent_path();
  if (std::filesystem::exists(nearest, unknown) && !std::filesystem::is_directory(nearest, unknown))
    return cannot_make(directory, key, ENOTDIR);
  if (::access(nearest.c_str(), W_OK | X_OK) != 0) return cannot_make(directory, key, errno);
  return ok();
}

Result<std::filesystem::path> make_event_directory(const MonitorConfig& monitor, const char* key) {
  PENSTOCK_TRY_ASSIGN(auto directory, absolute_name(monitor));
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return cannot_make(directory, key, error.value());
  return directory;
}

}  // namespace penstock::zero
