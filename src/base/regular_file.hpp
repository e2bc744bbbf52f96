#pragma once

#include "base/owned_fd.hpp"

#include <penstock/base/result.hpp>

#include <filesystem>

namespace penstock {

/// Opens a regular file with the flags of open(2); one that O_CREAT makes gets mode 0666. A pipe or a device is not
/// waited for, read or written, and opened only if it takes the file's place meanwhile: it could have no end, never
/// answer, or end a process that writes to it.
///
/// Errors: invalid_argument, for what is no regular file; those of the system.
[[nodiscard]] Result<OwnedFd> open_regular_file(const char* operation, const std::filesystem::path& path,
                                                int flags);

/// Of a file that is to be written or replaced; ok(), too, where nothing is there. Errors: as above.
[[nodiscard]] Result<void> check_regular(const char* operation, const std::filesystem::path& path);

}  // namespace penstock
