#pragma once

#include <penstock/zero/config/config.hpp>

#include <vector>

namespace penstock::tool {

/// Prints docs/configuration.md, the page of these keys.
void print_config_page(const std::vector<zero::ConfigKey>& keys);

}  // namespace penstock::tool
