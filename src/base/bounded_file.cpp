#include "base/bounded_file.hpp"

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
    const bool is_directory = status.type() == fs::file_type::directory;
    Error refusal = Error::invalid_argument(operation)
                        .object(path.string())
                        .wanted("a regular file")
                        .got(is_directory ? "a directory" : "a pipe, a device or a socket");
    return is_directory ? refusal : std::move(refusal).advice("write what it gives to a file first");
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

Result<std::string> BoundedFile::read_to_end(const TextLimit& limit) {
  const auto too_long = [&](ByteCount got) {
    return Error(limit.refusal, operation_)
        .object(path_.string())
        .reason(std::string("the file is too long for ") + limit.what)
        .wanted("at most " + to_string(limit.size))
        .got(got);
  };
  if (size_ > limit.size) return too_long(size_);
  std::string text;
  ByteCount part = size_ + 1_B, got;  // the size is a hint only: /proc tells 0, and a file may grow
  do {
    const std::size_t before = text.size();
    text.resize(before + part.value());
    PENSTOCK_TRY_ASSIGN(got, read_some(HostSpan(std::span(text).subspan(before))));
    text.resize(before + got.value());
    if (ByteCount(text.size()) > limit.size) return too_long(ByteCount(text.size()));
    part = 64_KiB;
  } while (!got.is_zero() && stream_.good());
  return text;
}

Result<std::string> read_text_file(const char* operation, const fs::path& path, const TextLimit& limit) {
  PENSTOCK_TRY_ASSIGN(BoundedFile file, BoundedFile::open(operation, path));
  return file.read_to_end(limit);
}

}  // namespace penstock
