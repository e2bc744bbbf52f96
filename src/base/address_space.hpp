#pragma once

#include <penstock/base/units.hpp>

#include <optional>

namespace penstock {

/// What RLIMIT_AS (`ulimit -v`) leaves for this process to map; none without a limit, or without /proc.
[[nodiscard]] std::optional<ByteCount> address_space_left();

}  // namespace penstock
