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
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <functional>
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
  EXPECT_EQ(center({0, 0}).spread, 0);
}

TEST(Statistics, CompareRoundByRound) {
  EXPECT_EQ(ratios({2, 9}, {4, 3}), (std::vector<double>{0.5, 3}));
}

TEST(StorageDevice, KnowsDirectoriesOfOneDrive) {
  const test::ScratchDirectory one, other;

  EXPECT_EQ(describe_storage(one.path()).value().id, describe_storage(other.path()).value().id);
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

TEST(StorageDevice, KnowsThatATmpfsIsPageCache) {
  const test::MountedFileSystem tmpfs(test::MountedFileSystem::Kind::tmpfs);
  if (!tmpfs.skip_reason().empty()) GTEST_SKIP() << tmpfs.skip_reason();

  const StorageDevice device = describe_storage(tmpfs.path()).value();

  EXPECT_EQ(to_string(device), "tmpfs on no block device");
  EXPECT_NE(device.id, describe_storage(test::ScratchDirectory().path()).value().id);
  EXPECT_TRUE(device.cached_because);
}

TEST(StorageDevice, KnowsThatALoopDeviceWithoutDirectIoUsesThePageCache) {
  const test::MountedFileSystem loop(test::MountedFileSystem::Kind::ext4);
  if (!loop.skip_reason().empty()) GTEST_SKIP() << loop.skip_reason();

  const StorageDevice device = describe_storage(loop.path()).value();

  EXPECT_TRUE(to_string(device).starts_with("ext4 on loop")) << to_string(device);
  ASSERT_TRUE(device.cached_because);
  EXPECT_NE(device.cached_because->find("loop"), std::string::npos) << *device.cached_because;
}

TEST(StorageDevice, IsAnErrorForAMissingDirectory) {
  EXPECT_EQ(describe_storage("/nonexistent/penstock").error().code(), ErrorCode::not_found);
}

/// In a child where a system call does not return: 0 where `examine` gives up at its deadline, 77 without seccomp.
int gives_up_when_one_hangs(long system_call,
                            const std::function<Result<void>(TimePoint deadline)>& examine) {
  return test::in_child([&] {
    if (!test::hang_system_call(system_call)) return 77;
    const auto refused = examine(std::chrono::milliseconds(20));
    if (refused) return 1;
    return refused.error().code() == ErrorCode::deadline_exceeded ? 0 : 2;
  });
}

TEST(StorageDevice, IsAnErrorWhereTheFileSystemDoesNotAnswer) {
  const test::ScratchDirectory directory;
  const auto describe = [&](TimePoint deadline) -> Result<void> {
    PENSTOCK_TRY(describe_storage(directory.path(), deadline));
    return ok();
  };
  for (const long call : {SYS_openat, SYS_fallocate, SYS_newfstatat, SYS_statfs}) {
    const int result = gives_up_when_one_hangs(call, describe);
    if (result == 77) GTEST_SKIP() << "no seccomp to be had";
    EXPECT_EQ(result, 0) << "system call " << call;
  }
}

TEST(StorageDevice, DoesNotWaitWithoutEndForTheFreeSpace) {
  const test::ScratchDirectory directory;
  const std::filesystem::path directories[] = {directory.path()};
  const auto check = [&](TimePoint deadline) { return check_free_space(directories, 1_KiB, deadline); };
  for (const long call : {SYS_newfstatat, SYS_statfs}) {
    const int result = gives_up_when_one_hangs(call, check);
    if (result == 77) GTEST_SKIP() << "no seccomp to be had";
    EXPECT_EQ(result, 0) << "system call " << call;
  }
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
