#pragma once

#include <penstock/base/result.hpp>
#include <penstock/zero/config/config.hpp>

#include <filesystem>

namespace penstock::zero {

/// Whether the directory of a monitor's files can be made, as far as that can be told without making it. `key`: that of
/// the configuration.
[[nodiscard]] Result<void> check_event_directory(const MonitorConfig& monitor, const char* key);
/// The directory of a monitor's files, which is made. Errors: those of making it.
[[nodiscard]] Result<std::filesystem::path> make_event_directory(const MonitorConfig& monitor,
                                                                 const char* key);

}  // namespace penstock::zero
