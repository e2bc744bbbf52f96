#pragma once

#include <cstdint>

namespace penstock::swap {

/// What a lease is for. `read` leases are counted; `modify` and `overwrite` are exclusive; `overwrite` loads
/// nothing, and what it does not write is undefined.
enum class Access : std::uint8_t { read, modify, overwrite };

/// Whether a request counts as a use in the trace, from which reading ahead and eviction know the future. Uses that
/// do not recur, such as those of a checksum over everything, are better not recorded.
enum class Use : std::uint8_t { recorded, unrecorded };

}  // namespace penstock::swap
