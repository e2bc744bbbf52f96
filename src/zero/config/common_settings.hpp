#pragma once

#include <penstock/zero/config/config.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero::config {

struct Setting {
  std::string_view key;  ///< its path
  std::string value;     ///< as JSON, on one line
};

/// The effective settings that all ranks of a job must have in common: all but those of a rank's own machine, such as
/// swap directories, threads and host memory.
[[nodiscard]] std::vector<Setting> common_settings(const Config& config);

}  // namespace penstock::zero::config
