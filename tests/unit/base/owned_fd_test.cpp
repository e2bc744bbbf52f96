#include "base/owned_fd.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <utility>

namespace penstock {
namespace {

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) != -1;
}
OwnedFd any_file() {
  return OwnedFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

TEST(OwnedFd, ClosesWhatItOwnsOnceAndAtItsEnd) {
  int fd = -1;
  {
    OwnedFd first = any_file();
    fd = first.get();
    const OwnedFd second = std::move(first);
    EXPECT_FALSE(first.is_open());  // NOLINT: a moved-from descriptor owns nothing
    EXPECT_EQ(second.get(), fd);
    EXPECT_TRUE(is_open(fd));
  }
  EXPECT_FALSE(is_open(fd));
}

TEST(OwnedFd, HandsItsDescriptorOver) {
  int fd = -1;
  {
    OwnedFd owned = any_file();
    fd = owned.release();
    EXPECT_FALSE(owned.is_open());
  }
  EXPECT_TRUE(is_open(fd));
  ::close(fd);
}

TEST(OwnedFd, ClosesWhatItOwnedBeforeAnAssignment) {
  OwnedFd owned = any_file();
  const int before = owned.get();
  {
    OwnedFd other = any_file();
    owned = std::move(other);
  }
  EXPECT_FALSE(is_open(before));
  EXPECT_TRUE(is_open(owned.get()));
}

}  // namespace
}  // namespace penstock
