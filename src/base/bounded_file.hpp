#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace penstock {

/// A regular file of which parts are read. A pipe or a device could have no end, or never answer.
class BoundedFile {
 public:
  /// Errors: not_found, permission and others of the system; invalid_argument, for what is no regular file, and for a
  /// name that is empty or has a NUL character.
  [[nodiscard]] static Result<BoundedFile> open(const char* operation, const std::filesystem::path& path);

  [[nodiscard]] ByteCount size() const { return size_; }
  /// The next `count` bytes. Errors: truncated, with the wanted and the actual number; io.
  [[nodiscard]] Result<std::string> read(ByteCount count);
  /// All bytes from the last read on. Errors: io; invalid_config, for more than `size_max`, calling it a `what`.
  [[nodiscard]] Result<std::string> read_to_end(ByteCount size_max, const char* what);
  /// Fills `into` with the bytes from `offset` on. Errors: as read().
  [[nodiscard]] Result<void> read_at(FileOffset offset, HostSpan into);

 private:
  BoundedFile() = default;
  /// How many bytes of `into` were read: fewer than its size at the end of the file.
  Result<ByteCount> read_some(HostSpan into);
  Result<void> read_next(HostSpan into);
  const char* operation_ = "";
  std::filesystem::path path_;
  std::ifstream stream_;
  ByteCount size_;
};

/// The whole text of a regular file. Errors: those of BoundedFile.
[[nodiscard]] Result<std::string> read_text_file(const char* operation, const std::filesystem::path& path,
                                                 const char* what, ByteCount size_max = 16_MiB);

}  // namespace penstock
