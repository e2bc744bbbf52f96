#include "gpt/output_file.hpp"

#include <cerrno>
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

}  // namespace gpt
