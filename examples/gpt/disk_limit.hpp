#pragma once

#include <penstock/base/result.hpp>
#include <penstock/swap/runtime_options.hpp>

#include <optional>
#include <vector>

namespace gpt {

/// What the swap directories' disks can do together, with requests as the library makes them.
struct DiskLimit {
  double read = 0, write = 0, mixed = 0;  ///< bytes a second; mixed: as many bytes read as written
  bool direct = false;                    ///< false: the page cache was measured, not the disk
};

/// Measures it on a scratch file of at most `size`, and at most half of what is free, in each directory, written
/// once before. Nothing where so little is free that it would say nothing. Blocks for a few seconds.
[[nodiscard]] penstock::Result<std::optional<DiskLimit>> measure_disk(
    std::vector<penstock::swap::PathOptions> paths, penstock::ByteCount size);

}  // namespace gpt
