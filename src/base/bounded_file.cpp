#include "base/bounded_file.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace penstock {

namespace fs = std::filesystem;

Result<BoundedFile> BoundedFile::open(const char* operation, const fs::path& path) {
  if (path.empty()) return Error::invalid_argument(operation).object("file").reason("its name is empty");
  if (path.native().find('\0') != std::string::npos) {
    return Error::invalid_argument(operation).object("file").reason(
        "the name has a NUL character, at which it would end");
  }
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error) return Error::from_errno(operation, error.value()).object(path.string());
  if (status.type() != fs::file_type::regular) {
    return Error::invalid_argument(operation)
        .object(path.string())
        .wanted("a regular file")
        .got(status.type() == fs::file_type::directory ? "a directory" : "a pipe, a device or a socket");
  }
  BoundedFile file;
  file.operation_ = operation;
  file.path_ = path;
  file.size_ = ByteCount(fs::file_size(path, error));
  if (error) return Error::from_errno(operation, error.value()).object(path.string());
  errno = 0;
  file.stream_.open(path, std::ios::binary);
  if (!file.stream_.is_open()) {
    return Error::from_errno(operation, errno != 0 ? errno : EIO).object(path.string());
  }
  return file;
}

Result<ByteCount> BoundedFile::read_some(HostSpan into) {
  errno = 0;
  stream_.read(reinterpret_cast<char*>(into.data()), static_cast<std::streamsize>(into.size().value()));
  if (stream_.bad()) return Error::from_errno(operation_, errno != 0 ? errno : EIO).object(path_.string());
  return ByteCount(static_cast<std::uint64_t>(stream_.gcount()));
}

Result<void> BoundedFile::read_next(HostSpan into) {
  PENSTOCK_TRY_ASSIGN(const ByteCount got, read_some(into));
  if (got == into.size()) return ok();
  return Error(ErrorCode::truncated, operation_).object(path_.string()).wanted(into.size()).got(got);
}

Result<std::string> BoundedFile::read(ByteCount count) {
  std::string bytes(count.value(), '\0');
  PENSTOCK_TRY(read_next(HostSpan(std::span(bytes))));
  return bytes;
}

Result<void> BoundedFile::read_at(FileOffset offset, HostSpan into) {
  stream_.clear();
  stream_.seekg(static_cast<std::streamoff>(offset.value()));
  return read_next(into);
}

Result<std::string> BoundedFile::read_to_end(ByteCount size_max, const char* what) {
  const auto too_long = [&] {
    return Error::invalid_config(operation_)
        .object(path_.string())
        .reason(std::string("the file is too long for ") + what)
        .wanted("at most " + to_string(size_max));
  };
  if (size_ > size_max) return too_long().got(size_);
  std::string text;
  ByteCount got;
  do {  // not by the size, which files of /proc do not tell, and others outgrow
    const std::size_t before = text.size();
    constexpr ByteCount part_min = 64_KiB;
    text.resize(before + std::max(size_, part_min).value());
    PENSTOCK_TRY_ASSIGN(got, read_some(HostSpan(std::span(text).subspan(before))));
    text.resize(before + got.value());
    if (ByteCount(text.size()) > size_max) return too_long();
  } while (!got.is_zero() && stream_.good());
  return text;
}

Result<std::string> read_text_file(const char* operation, const fs::path& path, const char* what,
                                   ByteCount size_max) {
  PENSTOCK_TRY_ASSIGN(BoundedFile file, BoundedFile::open(operation, path));
  return file.read_to_end(size_max, what);
}

}  // namespace penstock
