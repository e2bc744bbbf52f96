#include "base/bounded_file.hpp"

#include "base/regular_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>

namespace penstock {

namespace fs = std::filesystem;

Result<BoundedFile> BoundedFile::open(const char* operation, const fs::path& path) {
  if (path.empty()) return Error::invalid_argument(operation).object("file").reason("its name is empty");
  if (path.native().find('\0') != std::string::npos) {
    return Error::invalid_argument(operation).object("file").reason(
        "the name has a NUL character, at which it would end");
  }
  BoundedFile file;
  PENSTOCK_TRY_ASSIGN(file.file_, open_regular_file(operation, path, O_RDONLY));
  struct stat status {};
  if (::fstat(file.file_.get(), &status) != 0)
    return Error::from_errno(operation, errno).object(path.string());
  file.operation_ = operation;
  file.path_ = path;
  file.size_ = ByteCount(static_cast<std::uint64_t>(status.st_size));
  return file;
}

Result<ByteCount> BoundedFile::read_some(HostSpan into) {
  ByteCount got;
  while (got < into.size()) {
    const ssize_t count = ::read(file_.get(), into.data() + got.value(), (into.size() - got).value());
    if (count == 0) break;
    if (count > 0) {
      got += ByteCount(static_cast<std::uint64_t>(count));
    } else if (errno != EINTR) {
      return Error::from_errno(operation_, errno).object(path_.string());
    }
  }
  return got;
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
  if (::lseek(file_.get(), static_cast<off_t>(offset.value()), SEEK_SET) < 0)
    return Error::from_errno(operation_, errno).object(path_.string());
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
  } while (!got.is_zero());
  return text;
}

Result<std::string> read_text_file(const char* operation, const fs::path& path, const TextLimit& limit) {
  PENSTOCK_TRY_ASSIGN(BoundedFile file, BoundedFile::open(operation, path));
  return file.read_to_end(limit);
}

}  // namespace penstock
