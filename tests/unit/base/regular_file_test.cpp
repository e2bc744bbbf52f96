#include "base/regular_file.hpp"

#include "kit/scratch_directory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <thread>

namespace penstock {
namespace {

TEST(RegularFile, IsOpenedOrMade) {
  const test::ScratchDirectory scratch;
  const auto path = scratch.path() / "file";
  EXPECT_EQ(open_regular_file("test", path, O_RDONLY).error().code(), ErrorCode::not_found);
  const auto made = open_regular_file("test", path, O_WRONLY | O_CREAT);
  ASSERT_TRUE(made);
  EXPECT_EQ(::write(made->get(), "text", 4), 4);
  const auto again = open_regular_file("test", path, O_RDONLY);
  ASSERT_TRUE(again);
  char text[4];
  EXPECT_EQ(::read(again->get(), text, 4), 4);
  EXPECT_NE(::fcntl(again->get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(RegularFile, IsNoPipeDirectoryOrDevice) {
  const test::ScratchDirectory scratch;
  const auto pipe = scratch.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& path : {pipe, scratch.path(), std::filesystem::path("/dev/null")}) {
    for (const int flags : {O_RDONLY, O_WRONLY | O_CREAT}) {
      const auto refused = open_regular_file("test", path, flags);
      ASSERT_FALSE(refused) << path;
      EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument) << path;
      EXPECT_NE(refused.error().message().find("wanted a regular file"), std::string::npos);
    }
    EXPECT_FALSE(check_regular("test", path)) << path;
  }
  EXPECT_TRUE(check_regular("test", scratch.path() / "none"));
}

TEST(RegularFile, IsNoPipeThatTakesItsPlaceMeanwhile) {
  const test::ScratchDirectory scratch;
  const auto path = scratch.path() / "file";
  std::atomic<bool> ends = false;
  std::thread replaces([&] {
    while (!ends) {
      const auto pipe = scratch.path() / "pipe", file = scratch.path() / "other";
      EXPECT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
      std::filesystem::rename(pipe, path);
      std::fclose(std::fopen(file.c_str(), "w"));
      std::filesystem::rename(file, path);
    }
  });
  int opened = 0, refused = 0;
  while (opened < 200 || refused < 200) {
    const auto file = open_regular_file("test", path, O_RDONLY);
    struct stat status {};
    if (file) {
      ++opened;
      EXPECT_EQ(::fstat(file->get(), &status), 0);
      EXPECT_TRUE(S_ISREG(status.st_mode));
    } else if (file.error().code() == ErrorCode::invalid_argument) {
      ++refused;
    }
  }
  ends = true;
  replaces.join();
}

}  // namespace
}  // namespace penstock
