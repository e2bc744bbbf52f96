#pragma once

#include "base/owned_fd.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>

#include <cstdint>
#include <filesystem>
#include <string>

namespace penstock {

/// How long a text may be.
struct TextLimit {
  const char* what;  ///< "a configuration"
  ByteCount size = 16_MiB;
  ErrorCode refusal = ErrorCode::invalid_config;
};

/// A regular file that is read, whole or in parts.
class BoundedFile {
 public:
  /// Errors: those of open_regular_file; invalid_argument, for a name that is empty or has a NUL character.
  [[nodiscard]] static Result<BoundedFile> open(const char* operation, const std::filesystem::path& path);

  [[nodiscard]] ByteCount size() const { return size_; }
  /// The next `count` bytes. Errors: truncated, with the wanted and the actual number; io.
  [[nodiscard]] Result<std::string> read(ByteCount count);
  /// All bytes after those that were read. Errors: io; that of the limit, which is of the whole file.
  [[nodiscard]] Result<std::string> read_to_end(const TextLimit& limit);
  /// Fills `into` with the bytes from `offset` on. Errors: as read().
  [[nodiscard]] Result<void> read_at(FileOffset offset, HostSpan into);

 private:
  BoundedFile() = default;
  /// How many bytes of `into` were read: fewer than its size at the end of the file.
  Result<ByteCount> read_some(HostSpan into);
  Result<void> read_next(HostSpan into);
  const char* operation_ = "";
  std::filesystem::path path_;
  OwnedFd file_;
  ByteCount size_;
};

/// The whole text of a regular file. Errors: those of BoundedFile.
[[nodiscard]] Result<std::string> read_text_file(const char* operation, const std::filesystem::path& path,
                                                 const TextLimit& limit);

}  // namespace penstock
