#include "kit/child_process.hpp"
#include "kit/mounted_file_system.hpp"
#include "kit/sanitizer.hpp"
#include "kit/scratch_directory.hpp"
#include "measure/run_main.hpp"
#include "measure/statistics.hpp"
#include "measure/storage_device.hpp"

#include <penstock/tiers/io/file_system.hpp>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

namespace penstock::measure {
namespace {

TEST(Statistics, AreTheMedianAndTheInterquartileRange) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(spread({8, 1, 4, 2, 3, 5, 6, 7}), (7 - 3) / 4.5);
  EXPECT_EQ(center({5, 5, 5}).spread, 0);
}

TEST(Statistics, CompareRoundByRound) {
  EXPECT_EQ(ratios({2, 9}, {4, 3}), (std::vector<double>{0.5, 3}));
}

TEST(StorageDevice, KnowsDirectoriesOfOneDrive) {
  const test::ScratchDirectory one, other;

  EXPECT_EQ(describe_storage(one.path()).id, describe_storage(other.path()).id);
  EXPECT_NE(describe_storage(one.path()).id, describe_storage("/proc").id);
}

TEST(StorageDevice, CountsDirectoriesOfOneFileSystemTogether) {
  const test::ScratchDirectory one, other;
  const std::filesystem::path both[] = {one.path(), other.path()};
  const ByteCount most = tiers::real_file_system().free_space(one.path()).value() / 4 * 3;

  EXPECT_TRUE(check_free_space({both, 1}, most));
  const auto refused = check_free_space(both, most);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::no_space);
  EXPECT_NE(refused.error().message().find(other.path().string()), std::string::npos);
}

TEST(PageCache, IsDetectedWhereItIsNotBypassed) {
  const test::MountedFileSystem tmpfs(test::MountedFileSystem::Kind::tmpfs);
  if (!tmpfs.skip_reason().empty()) GTEST_SKIP() << tmpfs.skip_reason();

  EXPECT_TRUE(page_cache_because(tmpfs.path()).value());
}

TEST(PageCache, IsDetectedForALoopDeviceWithoutDirectIo) {
  const test::MountedFileSystem loop(test::MountedFileSystem::Kind::ext4);
  if (!loop.skip_reason().empty()) GTEST_SKIP() << loop.skip_reason();

  const auto why = page_cache_because(loop.path()).value();

  ASSERT_TRUE(why);
  EXPECT_NE(why->find("loop"), std::string::npos) << *why;
}

TEST(PageCache, IsAnErrorForAMissingDirectory) {
  EXPECT_EQ(page_cache_because("/nonexistent/penstock").error().code(), ErrorCode::not_found);
}

TEST(RunMain, EndsWithAMessageWhereMemoryOrThreadsAreRefusedInAnyThread) {
  using test::in_child;
  const auto status_of = [](void (*thread)()) {
    return in_child([&] {
      return run_main([&] {
        std::thread(thread).join();
        return 0;
      });
    });
  };
  EXPECT_EQ(status_of([] {}), 0);
  EXPECT_EQ(status_of([] { throw std::bad_alloc(); }), 1);
  EXPECT_EQ(status_of([] { throw std::system_error(EAGAIN, std::generic_category()); }), 1);
  EXPECT_EQ(status_of([] { throw std::logic_error("a defect"); }), -SIGABRT);
  if (test::any_sanitizer) return;  // its operator new ends the process
  // noexcept: the exception could not reach the body.
  EXPECT_EQ(status_of([]() noexcept { (void)std::vector<char>(std::size_t{1} << 50).data()[7]; }), 1);
}

TEST(RunMain, TurnsAWriteBeyondTheLimitOnFileSizesIntoAnError) {
  const test::ScratchDirectory directory;
  const int status = test::in_child([&] {
    return run_main([&] {
      const rlimit limit{1000, 1000};
      const int file = ::open((directory.path() / "file").c_str(), O_CREAT | O_WRONLY, 0600);
      const std::vector<char> bytes(2000);
      if (::setrlimit(RLIMIT_FSIZE, &limit) != 0 || ::write(file, bytes.data(), 2000) != 1000) return 1;
      return ::write(file, bytes.data(), 1000) == -1 && errno == EFBIG ? 0 : 2;
    });
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace penstock::measure
