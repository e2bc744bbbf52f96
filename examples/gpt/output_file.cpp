#include "gpt/output_file.hpp"

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>

namespace gpt {

using penstock::Error;
using penstock::ErrorCode;
using penstock::Result;

Result<OutputFile> OutputFile::create(const std::filesystem::path& path) {
  std::error_code failed;
  const auto there = std::filesystem::status(path, failed);
  if (std::filesystem::is_directory(there))
    return Error::invalid_argument("OutputFile::create").object(path.string()).reason("it is a directory");
  std::filesystem::path written = path;
  if (!std::filesystem::exists(there) || std::filesystem::is_regular_file(there)) written += ".part";
  if (std::FILE* const opened = std::fopen(written.c_str(), "we")) return OutputFile(path, written, opened);
  const ErrorCode code = errno == ENOENT   ? ErrorCode::not_found
                         : errno == EACCES ? ErrorCode::permission
                                           : ErrorCode::io;
  return Error(code, "OutputFile::create").object(path.string()).reason(std::strerror(errno));
}

OutputFile::~OutputFile() {
  std::error_code ignored;
  if (file_ != nullptr && written_ != path_) std::filesystem::remove(written_, ignored);
}

Error OutputFile::not_written() const {
  return Error(ErrorCode::io, "OutputFile::close")
      .object(path_.string())
      .reason("the file could not be written");
}

Result<void> OutputFile::flush() {
  if (std::fflush(file_.get()) == 0 && std::ferror(file_.get()) == 0) return penstock::ok();
  return not_written();
}

Result<void> OutputFile::close() {
  const bool failed = std::ferror(file_.get()) != 0;
  const bool closed = std::fclose(file_.release()) == 0 && !failed;
  if (closed && (written_ == path_ || std::rename(written_.c_str(), path_.c_str()) == 0))
    return penstock::ok();
  return not_written();
}

Result<void> check_different(std::span<const NamedFile> files) {
  std::map<std::filesystem::path, const char*> options;  // by the file that they name
  for (const auto& [option, file] : files) {
    if (!file) continue;
    std::error_code failed;
    const auto [other, is_new] = options.emplace(std::filesystem::weakly_canonical(*file, failed), option);
    if (is_new) continue;
    return Error::invalid_argument("gpt_train")
        .object(file->string())
        .reason(std::string(other->second) + " and " + option + " both name it")
        .advice("name another file");
  }
  return penstock::ok();
}

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "%.17g", value);
  return digits.data();
}

}  // namespace gpt
