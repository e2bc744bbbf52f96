#pragma once

#include <penstock/zero/config/config.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero::config {

/// One error in a configuration.
struct Violation {
  std::vector<std::string_view> keys;  ///< the key to change, then the keys that it contradicts
  std::string text;                    ///< wanted value, actual value and advice
};

/// Checks a configuration, from a file or from code, against the ranges of the table and the rules between keys.
[[nodiscard]] std::vector<Violation> check(const Config& config);

}  // namespace penstock::zero::config
