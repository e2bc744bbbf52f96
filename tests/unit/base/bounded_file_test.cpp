#include "base/bounded_file.hpp"
#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string>

namespace penstock {
namespace {

Result<std::string> read(const std::filesystem::path& file, ByteCount size_max = 16_MiB) {
  return read_text_file("test", file, {.what = "a test", .size = size_max});
}

TEST(BoundedFile, GivesTheWholeText) {
  const test::ScratchDirectory directory;
  const auto file = directory.path() / "text";
  std::ofstream(file) << "";
  EXPECT_EQ(read(file).value(), "");
  const std::string text(200'000, 'x');  // in more than one part
  std::ofstream(file) << text;
  EXPECT_EQ(read(file).value(), text);
  EXPECT_EQ(read(file, ByteCount(text.size())).value(), text);

  const auto long_one = read(file, ByteCount(text.size() - 1));
  ASSERT_FALSE(long_one);
  EXPECT_EQ(long_one.error().code(), ErrorCode::invalid_config);
  EXPECT_NE(long_one.error().message().find("too long for a test"), std::string::npos);
}

TEST(BoundedFile, ReadsFilesThatDoNotTellTheirSize) {
  // Every second page has other rights, and each such page a line of its own.
  constexpr std::size_t page = 4096, pages = 2000;
  void* const all = ::mmap(nullptr, pages * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(all, MAP_FAILED);
  for (std::size_t i = 0; i < pages; i += 2)
    ASSERT_EQ(::mprotect(static_cast<std::byte*>(all) + i * page, page, PROT_READ), 0);
  const std::string maps = read("/proc/self/maps").value();
  ASSERT_EQ(::munmap(all, pages * page), 0);
  EXPECT_GE(std::count(maps.begin(), maps.end(), '\n'), std::ptrdiff_t{pages});
  EXPECT_EQ(read("/proc/self/stat", 4_B).error().code(), ErrorCode::invalid_config);
  EXPECT_EQ(read("/proc/self/mem").error().code(), ErrorCode::io);
}

TEST(BoundedFile, OpensNothingThatMayHaveNoEnd) {
  const test::ScratchDirectory directory;
  const auto pipe = directory.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& file : {pipe, directory.path(), std::filesystem::path("/dev/zero")}) {
    const auto refused = read(file);
    ASSERT_FALSE(refused) << file;
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument) << file;
    EXPECT_NE(refused.error().message().find("wanted a regular file"), std::string::npos);
  }
}

TEST(BoundedFile, NamesWhatIsWrongWithAName) {
  const auto message = [](std::string file) { return read(std::move(file)).error().message(); };
  EXPECT_NE(message("").find("its name is empty"), std::string::npos) << message("");
  const std::string divided("a\0b", 3);
  EXPECT_NE(message(divided).find("NUL character"), std::string::npos) << message(divided);
  EXPECT_EQ(read("/penstock-none").error().code(), ErrorCode::not_found);
}

}  // namespace
}  // namespace penstock
