#pragma once

#include <penstock/base/result.hpp>
#include <penstock/swap/runtime_options.hpp>

#include <optional>
#include <vector>

namespace gpt {

/// The rates of the swap directories' disks together, with the requests that the library uses.
struct DiskLimit {
  double read = 0, write = 0, mixed = 0;  ///< bytes a second; mixed: as many bytes read as written
  bool direct = false;                    ///< false: the page cache was measured, not the disk
};

/// Measures it on a scratch file in each directory, of `size` or, where less is free, of a half, a quarter and so on of
/// it, written once before. Returns nothing if too little space is free for a useful measurement. Blocks for a few
/// seconds, or until the paths' deadline where a file system does not answer.
[[nodiscard]] penstock::Result<std::optional<DiskLimit>> measure_disk(
    std::vector<penstock::swap::PathOptions> paths, penstock::ByteCount size);

}  // namespace gpt
