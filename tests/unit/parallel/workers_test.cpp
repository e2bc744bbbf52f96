#include <penstock/parallel/workers.hpp>

#include "kit/child_process.hpp"
#include "kit/sanitizer.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <latch>
#include <string>
#include <thread>
#include <vector>

namespace penstock::parallel {
namespace {

TEST(Workers, RunEachPostedTaskOnceBeforeTheyAreDestroyed) {
  std::vector<std::atomic<int>> runs(500);
  {
    Workers workers = Workers::create({.threads = 2}).value();
    Executor& executor = workers;
    for (auto& run : runs) executor.post([&run] { ++run; });
  }

  for (const auto& run : runs) EXPECT_EQ(run, 1);
}

// As many as asked for, and TBB prints nothing.
TEST(Workers, CanBeMoreThanTheMachineHasCores) {
  if (test::thread_sanitizer) GTEST_SKIP() << "under ThreadSanitizer the caller does all the work";
  const std::uint32_t threads = std::thread::hardware_concurrency() + 3;
  Workers workers = Workers::create({.threads = threads}).value();
  std::latch all(threads);
  testing::internal::CaptureStderr();

  workers.parallel_blocks(threads, [&](std::size_t first, std::size_t last) noexcept {
    all.count_down(static_cast<std::ptrdiff_t>(last - first));
    for (int wait = 0; wait < 5000 && !all.try_wait(); ++wait)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });

  EXPECT_TRUE(all.try_wait());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Workers, AreRefusedWhereTheirThreadsCannotBeStarted) {
  if (test::thread_sanitizer) GTEST_SKIP() << "under ThreadSanitizer no threads are started";
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one hardware thread";
  const int result = test::in_child([] {
    if (!test::refuse_system_call(SYS_clone3, EAGAIN)) return 77;
    const auto workers = Workers::create({.threads = 2});
    return !workers && workers.error().code() == ErrorCode::no_space && Workers::create({.threads = 1}) ? 0
                                                                                                        : 1;
  });
  if (result == 77) GTEST_SKIP() << "no seccomp to be had";

  EXPECT_EQ(result, 0);
}

// More than there are cores, of which some can be started.
TEST(Workers, AreRefusedWhereOneOfTheirThreadsCannotBeStarted) {
  if (test::thread_sanitizer || test::address_sanitizer)
    GTEST_SKIP() << "a sanitizer reserves the address space";
  const std::uint32_t cores = std::thread::hardware_concurrency();
  const int result = test::in_child([cores] {
    pthread_attr_t attributes;
    std::size_t stack = 0, pages = 0;
    if (::pthread_getattr_default_np(&attributes) != 0) return 2;
    if (::pthread_attr_getstacksize(&attributes, &stack) != 0) return 2;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t most = pages * static_cast<std::size_t>(::getpagesize()) + (cores + 20) * stack;
    const rlimit limit{.rlim_cur = most, .rlim_max = most};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return 2;
    if (!Workers::create({.threads = cores})) return 3;
    const auto workers = Workers::create({.threads = cores + 40});
    return !workers && workers.error().code() == ErrorCode::no_space ? 0 : 1;
  });
  EXPECT_EQ(result, 0);
}

TEST(Workers, RunAPostedTaskWhileTheCallerDoesSomethingElse) {
  if (test::thread_sanitizer) GTEST_SKIP() << "under ThreadSanitizer the caller does all the work";
  Workers workers = Workers::create({.threads = 2}).value();
  std::atomic<bool> ran{false};
  std::thread::id runner;

  workers.post([&] {
    runner = std::this_thread::get_id();
    ran = true;
    ran.notify_one();
  });
  ran.wait(false);  // does not help

  EXPECT_NE(runner, std::this_thread::get_id());
}

TEST(Workers, RunAPostedTaskAtOnceWhereTheCallerIsTheOnlyThread) {
  Workers workers = Workers::create({.threads = 1}).value();
  std::thread::id runner;

  workers.post([&] { runner = std::this_thread::get_id(); });

  EXPECT_EQ(runner, std::this_thread::get_id());
}

TEST(Workers, DivideBlocksInsideAPostedTask) {
  std::vector<std::atomic<int>> runs(100);
  {
    Workers workers = Workers::create({.threads = 2}).value();
    workers.post([&] {
      workers.parallel_blocks(runs.size(), [&](std::size_t first, std::size_t last) noexcept {
        for (std::size_t i = first; i < last; ++i) ++runs[i];
      });
    });
  }

  for (const auto& run : runs) EXPECT_EQ(run, 1);
}

}  // namespace
}  // namespace penstock::parallel
