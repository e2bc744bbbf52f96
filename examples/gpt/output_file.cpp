#include "gpt/output_file.hpp"

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>

namespace gpt {

using penstock::Error;
using penstock::ErrorCode;
using penstock::Result;

Result<OutputFile> OutputFile::create(const std::filesystem::path& path) {
  if (std::FILE* const opened = std::fopen(path.c_str(), "we")) return OutputFile(path, opened);
  const ErrorCode code = errno == ENOENT   ? ErrorCode::not_found
                         : errno == EACCES ? ErrorCode::permission
                                           : ErrorCode::io;
  return Error(code, "OutputFile::create").object(path.string()).reason(std::strerror(errno));
}

Result<void> OutputFile::close() {
  const bool failed = std::ferror(file_.get()) != 0;
  if (std::fclose(file_.release()) == 0 && !failed) return penstock::ok();
  return Error(ErrorCode::io, "OutputFile::close")
      .object(path_.string())
      .reason("the file could not be written");
}

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "%.17g", value);
  return digits.data();
}

}  // namespace gpt
