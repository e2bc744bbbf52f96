#include "base/owned_fd.hpp"

#include <unistd.h>

namespace penstock {

OwnedFd::~OwnedFd() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace penstock
