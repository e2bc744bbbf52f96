// A file is replaced as a whole, or stays as it was.
#include "base/replace_file.hpp"

#include "kit/child_process.hpp"
#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>
#include <array>
#include <csignal>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace penstock {
namespace {

constexpr std::array<std::string_view, 1> all = {""};
constexpr FileKind any{.name = "any file", .beginnings = all};

std::string contents(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::size_t files_in(const std::filesystem::path& directory) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(directory), {}));
}

TEST(ReplaceFile, WritesANewFileAndReplacesOneWithItsPermissions) {
  const test::ScratchDirectory scratch;
  const auto file = scratch.path() / "file";
  ASSERT_TRUE(replace_file("save", file, "first", any));
  EXPECT_EQ(contents(file), "first");
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);

  ASSERT_TRUE(replace_file("save", file, "", any));

  EXPECT_EQ(contents(file), "");
  EXPECT_EQ(std::filesystem::status(file).permissions(), std::filesystem::perms::owner_all);
  EXPECT_EQ(files_in(scratch.path()), 1u);
}

TEST(ReplaceFile, LeavesLinksAndReplacesWhatTheyLeadTo) {
  const test::ScratchDirectory scratch;
  std::filesystem::create_symlink("file", scratch.path() / "link");
  std::filesystem::create_symlink("link", scratch.path() / "link to it");
  for (const char* const text : {"not there before", "there"}) {
    ASSERT_TRUE(replace_file("save", scratch.path() / "link to it", text, any));
    EXPECT_EQ(contents(scratch.path() / "file"), text);
    EXPECT_TRUE(std::filesystem::is_symlink(scratch.path() / "link"));
  }
  EXPECT_EQ(files_in(scratch.path()), 3u);
}

TEST(ReplaceFile, ReplacesOnlyItsKind) {
  const test::ScratchDirectory scratch;
  const auto file = scratch.path() / "file";
  static constexpr std::array<std::string_view, 2> beginnings = {"report of ", "{report"};
  constexpr FileKind kind{.name = "a report", .beginnings = beginnings};
  for (const char* const other : {" report of a", "Report of a", "{repo rt", "configuration", "x"}) {
    std::ofstream(file) << other;
    for (const auto& refused :
         {replace_file("save", file, "report of b", kind), check_replaceable("save", file, kind)}) {
      ASSERT_FALSE(refused) << other;
      EXPECT_EQ(refused.error().code(), ErrorCode::already_exists);
      EXPECT_NE(refused.error().message().find("that of a report"), std::string::npos)
          << refused.error().message();
    }
    EXPECT_EQ(contents(file), other);
    EXPECT_EQ(files_in(scratch.path()), 1u);
  }
  for (const char* const same : {"", "rep", "report of a", "{report", "{re"}) {
    std::ofstream(file) << same;
    EXPECT_TRUE(check_replaceable("save", file, kind)) << same;
    EXPECT_TRUE(replace_file("save", file, "report of b", kind)) << same;
  }
}

TEST(ReplaceFile, LeavesTheOldFileWhereTheNewOneCannotBeWritten) {
  const test::ScratchDirectory scratch;
  const auto file = scratch.path() / "file";
  ASSERT_TRUE(replace_file("save", file, "old", any));
  const int result = test::in_child([&] {
    const rlimit limit{4096, 4096};
    if (std::signal(SIGXFSZ, SIG_IGN) == SIG_ERR || ::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    const auto replaced = replace_file("save", file, std::string(10'000, 'x'), any);
    return !replaced && replaced.error().code() == ErrorCode::no_space ? 0 : 1;
  });
  EXPECT_EQ(result, 0);
  EXPECT_EQ(contents(file), "old");
  EXPECT_EQ(files_in(scratch.path()), 1u);
}

TEST(ReplaceFile, PassesOverWhatAKilledProcessOfItsNumberHasLeft) {
  const test::ScratchDirectory scratch;
  const auto file = scratch.path() / "file";
  for (int number = 0; number < 20; ++number)
    std::ofstream(file.string() + '.' + std::to_string(::getpid()) + '.' + std::to_string(number) + ".new");
  EXPECT_TRUE(check_replaceable("save", file, any));
  ASSERT_TRUE(replace_file("save", file, "text", any));
  EXPECT_EQ(contents(file), "text");
}

TEST(ReplaceFile, LeavesAFileThatIsBeingWritten) {
  const test::ScratchDirectory scratch;
  const auto file = scratch.path() / "file";
  const int written = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(written, LOCK_EX), 0);
  EXPECT_EQ(replace_file("save", file, "text", any).error().code(), ErrorCode::in_use);
  EXPECT_EQ(check_replaceable("save", file, any).error().code(), ErrorCode::in_use);
  EXPECT_EQ(files_in(scratch.path()), 1u);
  ::close(written);
  EXPECT_TRUE(replace_file("save", file, "text", any));
}

TEST(ReplaceFile, RefusesWhatItCannotReplaceAndSaysSoBefore) {
  const test::ScratchDirectory scratch;
  const auto expect_refused = [](const std::filesystem::path& file, ErrorCode code) {
    for (const auto& refused :
         {replace_file("save", file, "text", any), check_replaceable("save", file, any)}) {
      ASSERT_FALSE(refused) << file;
      EXPECT_EQ(refused.error().code(), code) << refused.error().message();
    }
  };
  expect_refused("", ErrorCode::invalid_argument);
  expect_refused(scratch.path() / "file" / "", ErrorCode::invalid_argument);
  expect_refused(scratch.path(), ErrorCode::invalid_argument);
  expect_refused("/dev/full", ErrorCode::invalid_argument);
  const std::string of_device = check_replaceable("save", "/dev/full", any).error().message();
  EXPECT_NE(of_device.find("try     name a file"), std::string::npos) << of_device;
  expect_refused(scratch.path() / std::string(300, 'x'), ErrorCode::invalid_argument);
  expect_refused(scratch.path() / std::string(300, 'x') / "file", ErrorCode::invalid_argument);
  std::filesystem::create_symlink("loop", scratch.path() / "loop");
  expect_refused(scratch.path() / "loop", ErrorCode::invalid_argument);
  expect_refused(scratch.path() / "loop" / "file", ErrorCode::invalid_argument);
  expect_refused(scratch.path() / "none" / "file", ErrorCode::not_found);
  EXPECT_TRUE(check_replaceable("save", scratch.path() / "file", any));
  EXPECT_EQ(files_in(scratch.path()), 1u);  // the loop
}

}  // namespace
}  // namespace penstock
