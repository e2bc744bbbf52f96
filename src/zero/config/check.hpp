#pragma once

#include <penstock/zero/config/config.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero::config {

/// What a configuration gets wrong.
struct Violation {
  std::vector<std::string_view> keys;  ///< the one to change, then those that it contradicts
  std::string text;                    ///< wanted, got and what to do
};

/// Holds a configuration, from a file or from code, against the ranges of the table and the rules that join keys.
[[nodiscard]] std::vector<Violation> check(const Config& config);

}  // namespace penstock::zero::config
