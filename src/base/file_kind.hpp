#pragma once

#include <penstock/base/result.hpp>

#include <filesystem>
#include <span>
#include <string_view>

namespace penstock {

/// What a file of the library is, as its first bytes tell. Another one is not replaced: its contents would be lost.
struct FileKind {
  std::string_view name;                         ///< "a report"
  std::span<const std::string_view> beginnings;  ///< of which it has one, as far as it has been written
};

/// Whether the file is of this kind, or empty; `descriptor` is open for reading.
///
/// Errors, of `operation` and with `file` as their object: already_exists, for another file; those of the system.
[[nodiscard]] Result<void> check_kind(const char* operation, const std::filesystem::path& file,
                                      int descriptor, const FileKind& kind);

}  // namespace penstock
