#pragma once

#include "base/file_kind.hpp"

#include <penstock/base/result.hpp>

#include <filesystem>
#include <string_view>
#include <system_error>

namespace penstock {

/// Writes `contents` beside `file`, and then puts that in its place, with its permissions: another process reads the
/// old contents or the new ones, and an error leaves the old ones. Other threads and processes may replace the same
/// file. A link stays: what it leads to is replaced.
///
/// Errors, of `operation` and with `file` as their object: invalid_argument, for a name that ends with a separator, and
/// for a directory, a device, a pipe or a socket; already_exists, for a file of another kind; in_use, for one that is
/// locked, as the timeline of a run; those of the file system.
[[nodiscard]] Result<void> replace_file(const char* operation, const std::filesystem::path& file,
                                        std::string_view contents, const FileKind& kind);
/// Whether replace_file() could begin there now. Changes nothing. Errors: those of replace_file().
[[nodiscard]] Result<void> check_replaceable(const char* operation, const std::filesystem::path& file,
                                             const FileKind& kind);

/// The absolute name of the file to which `file` leads, also of a link whose file is not there yet. `error` is that of
/// the file system, ELOOP for more than 40 links.
[[nodiscard]] std::filesystem::path without_links(const std::filesystem::path& file, std::error_code& error);

}  // namespace penstock
