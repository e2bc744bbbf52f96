#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace penstock::zero::exchange {

/// A regular file of which parts are read. A pipe or a device could have no end, or never answer.
class BoundedFile {
 public:
  /// Errors: not_found, permission and others of the system; invalid_argument, for what is no regular file.
  [[nodiscard]] static Result<BoundedFile> open(const char* operation, const std::filesystem::path& path);

  [[nodiscard]] ByteCount size() const { return size_; }
  /// The next `count` bytes. Errors: truncated, with the wanted and the actual number; io.
  [[nodiscard]] Result<std::string> read(ByteCount count);
  /// Fills `into` with the bytes from `offset` on. Errors: as read().
  [[nodiscard]] Result<void> read_at(FileOffset offset, HostSpan into);

 private:
  BoundedFile() = default;
  Result<void> read_next(HostSpan into);
  const char* operation_ = "";
  std::filesystem::path path_;
  std::ifstream stream_;
  ByteCount size_;
};

/// The whole text of a file. Errors: as BoundedFile; invalid_config, for more than 16 MiB, calling it a `what`.
[[nodiscard]] Result<std::string> read_text_file(const char* operation, const std::filesystem::path& path,
                                                 const char* what);

}  // namespace penstock::zero::exchange
