#pragma once

#include <penstock/base/units.hpp>

#include <string>

namespace penstock::tiers {

/// What a 4Kn drive needs of memory, offset and length; no file has less, so that a layout survives a move to one.
inline constexpr Alignment alignment_min{4096};

/// Switches the page cache off for an open file, once a read of one block has shown that this works, and sets
/// `alignment` to the file system's own answer. Returns why that is not possible, or an empty string.
[[nodiscard]] std::string enable_direct_io(int fd, Alignment& alignment);

}  // namespace penstock::tiers
