#pragma once

#include <penstock/base/result.hpp>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace gpt {

/// A file that a report is written to. Opened before the training, so that a wrong path is an error at once; one that
/// is there already is replaced by close(), so that a training that cannot start leaves it.
class OutputFile {
 public:
  OutputFile(OutputFile&& other) noexcept = default;
  OutputFile& operator=(OutputFile&& other) noexcept = default;
  ~OutputFile();

  /// Errors: those of opening the file, such as permission and not_found; invalid_argument, for a directory.
  [[nodiscard]] static penstock::Result<OutputFile> create(const std::filesystem::path& path);

  [[nodiscard]] std::FILE* get() const { return file_.get(); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Errors: io, if the file could not be written.
  [[nodiscard]] penstock::Result<void> flush();
  /// The same, and what was there before is replaced.
  [[nodiscard]] penstock::Result<void> close();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  OutputFile(std::filesystem::path path, std::filesystem::path written, std::FILE* file)
      : path_(std::move(path)), written_(std::move(written)), file_(file) {}

  [[nodiscard]] penstock::Error not_written() const;

  std::filesystem::path path_;
  std::filesystem::path written_;  // instead of it, until close(); a device or a pipe is written itself
  std::unique_ptr<std::FILE, Close> file_;
};

/// A file that an option names, or none.
struct NamedFile {
  const char* option;
  std::optional<std::filesystem::path> file;
};
/// Errors: invalid_argument, if two options name one file.
[[nodiscard]] penstock::Result<void> check_different(std::span<const NamedFile> files);

/// A number as JSON has it, with all its digits. JSON has none that is not finite: null stands for it.
[[nodiscard]] std::string json_number(double value);

}  // namespace gpt
