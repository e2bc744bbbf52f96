#pragma once

#include "zero/config/json_text.hpp"

#include <penstock/base/result.hpp>

#include <string>
#include <vector>

namespace penstock::zero::config {

/// invalid_config, with a note for each problem in the order of the lines. `name` is that of the file, which is `what`.
[[nodiscard]] Error to_error(const char* operation, const std::string& name, std::vector<Problem> problems,
                             const std::string& what = "the configuration");

}  // namespace penstock::zero::config
