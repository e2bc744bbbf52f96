#pragma once

#include "zero/simulate/placement_search.hpp"

#include <json/json.h>
#include <cstdio>

namespace penstock::tool {

/// What a step asks of each resource of a rank, amount / rate = seconds, the limiting one, and what would help.
void print_timing(std::FILE* to, const zero::simulate::TimedConfig& timed);
/// The same figures; docs/estimate.md describes the members.
[[nodiscard]] Json::Value timing_json(const zero::simulate::TimedConfig& timed);

/// The candidates that fit and the settings that were tried, with their seconds, and where the chosen one keeps what.
void print_search(std::FILE* to, const zero::simulate::PlacementSearch& search);
/// The chosen configuration, and the figures of both.
[[nodiscard]] Json::Value search_json(const zero::simulate::PlacementSearch& search);

}  // namespace penstock::tool
