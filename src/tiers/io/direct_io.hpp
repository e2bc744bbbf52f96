#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/units.hpp>

#include <string>

namespace penstock::tiers {

/// The alignment of memory, offset and length that a drive with 4 KiB sectors needs. All files use this one, so that a
/// layout also works after a move to such a drive. Ranges of host memory and of files have no larger one: a file that
/// needs more has no direct I/O.
inline constexpr Alignment file_alignment{4096};

/// Enables direct I/O for an open file if a read of one block works with it. Returns an empty string, or the reason why
/// direct I/O is not possible.
///
/// Errors: those of fcntl, if it refuses to make the file buffered again.
[[nodiscard]] Result<std::string> enable_direct_io(int fd);

}  // namespace penstock::tiers
