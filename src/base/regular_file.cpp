#include "base/regular_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <cerrno>

namespace penstock {

namespace {

/// `reads`: what a pipe gives is wanted.
Error not_regular(const char* operation, const std::filesystem::path& path, bool is_directory, bool reads) {
  return Error::invalid_argument(operation)
      .object(path.string())
      .wanted("a regular file")
      .got(is_directory ? "a directory" : "a pipe, a device or a socket")
      .advice(is_directory ? "name a file in it"
              : reads      ? "write what it gives to a file, and name that"
                           : "name a file");
}

Result<void> check_mode(const char* operation, const std::filesystem::path& path, mode_t mode, bool reads) {
  if (S_ISREG(mode)) return ok();
  return not_regular(operation, path, S_ISDIR(mode), reads);
}

Result<void> check_path(const char* operation, const std::filesystem::path& path, bool reads) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return check_mode(operation, path, status.st_mode, reads);
  if (errno == ENOENT) return ok();
  return Error::from_errno(operation, errno).object(path.string());
}

}  // namespace

Result<void> check_regular(const char* operation, const std::filesystem::path& path) {
  return check_path(operation, path, /*reads=*/false);
}

Result<OwnedFd> open_regular_file(const char* operation, const std::filesystem::path& path, int flags) {
  const bool reads = (flags & O_ACCMODE) == O_RDONLY;
  PENSTOCK_TRY(check_path(operation, path, reads));  // to open a device may do something
  int opened = -1;
  do {
    opened = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0666);
  } while (opened < 0 && errno == EINTR);
  if (opened < 0 && errno == ENXIO) return not_regular(operation, path, /*is_directory=*/false, reads);
  OwnedFd file(opened);
  struct stat status {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0)
    return Error::from_errno(operation, errno).object(path.string());
  PENSTOCK_TRY(check_mode(operation, path, status.st_mode, reads));  // another may be there meanwhile
  return file;
}

}  // namespace penstock
