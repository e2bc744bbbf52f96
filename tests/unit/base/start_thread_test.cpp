#include "base/start_thread.hpp"

#include "kit/child_process.hpp"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <atomic>
#include <cerrno>

namespace penstock {
namespace {

TEST(StartThread, RunsItsBody) {
  std::atomic<bool> ran{false};
  start_thread("test", "a thread", [&] { ran = true; }).value().join();
  EXPECT_TRUE(ran);
}

TEST(StartThread, ReturnsTheKernelsRefusal) {
  const int result = test::in_child([] {
    if (!test::refuse_system_call(SYS_clone3, EAGAIN)) return 77;
    const auto started = start_thread("test", "the driver of /mnt", [] {});
    if (started) return 1;
    const std::string text = started.error().message();
    return started.error().code() == ErrorCode::no_space && text.find("the driver of /mnt") != text.npos &&
                   text.find("ulimit -u") != text.npos && text.find("ulimit -v") != text.npos
               ? 0
               : 2;
  });
  if (result == 77) GTEST_SKIP() << "no seccomp to be had";

  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace penstock
