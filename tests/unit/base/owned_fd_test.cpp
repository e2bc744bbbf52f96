#include "base/owned_fd.hpp"

#include "kit/child_process.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cerrno>
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

TEST(OwnedFd, TakesNoNumberOfAStandardStreamThatIsClosed) {
  const int result = test::in_child([] {
    for (int stream = 0; stream <= 2; ++stream) ::close(stream);
    const OwnedFd first = any_file(), second = any_file();
    for (int stream = 0; stream <= 2; ++stream) {
      if (is_open(stream)) return 2;
    }
    if ((::fcntl(first.get(), F_GETFD) & FD_CLOEXEC) == 0) return 3;
    return first.get() > 2 && second.get() > 2 ? 0 : 4;
  });

  EXPECT_EQ(result, 0);
}

TEST(OwnedFd, ReportsThatNoHigherNumberIsFree) {
  const int result = test::in_child([] {
    ::close(0);
    const rlimit limit{3, 3};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
    const OwnedFd none = any_file();
    const int error = errno;
    return !none.is_open() && error == EINVAL && !is_open(0) ? 0 : 3;
  });

  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace penstock
