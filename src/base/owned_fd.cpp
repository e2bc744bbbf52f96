#include "base/owned_fd.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>

namespace penstock {

OwnedFd::OwnedFd(int fd) noexcept : fd_(fd) {
  if (fd < 0 || fd > STDERR_FILENO) return;
  fd_ = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  ::close(fd);
  errno = error;
}

OwnedFd::~OwnedFd() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace penstock
