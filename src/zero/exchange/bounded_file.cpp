#include "zero/exchange/bounded_file.hpp"

#include <cerrno>

namespace penstock::zero::exchange {

namespace fs = std::filesystem;

Result<BoundedFile> BoundedFile::open(const char* operation, const fs::path& path) {
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

Result<void> BoundedFile::read_next(HostSpan into) {
  errno = 0;
  stream_.read(reinterpret_cast<char*>(into.data()), static_cast<std::streamsize>(into.size().value()));
  if (stream_.bad()) {
    return Error::from_errno(operation_, errno != 0 ? errno : EIO).object(path_.string());
  }
  if (const ByteCount got(static_cast<std::uint64_t>(stream_.gcount())); got != into.size()) {
    return Error(ErrorCode::truncated, operation_).object(path_.string()).wanted(into.size()).got(got);
  }
  return ok();
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

Result<std::string> read_text_file(const char* operation, const fs::path& path, const char* what) {
  constexpr ByteCount size_max = 16_MiB;
  PENSTOCK_TRY_ASSIGN(BoundedFile file, BoundedFile::open(operation, path));
  if (file.size() > size_max) {
    return Error::invalid_config(operation)
        .object(path.string())
        .reason(std::string("the file is too long for ") + what)
        .wanted("at most " + to_string(size_max))
        .got(file.size());
  }
  return file.read(file.size());
}

}  // namespace penstock::zero::exchange
