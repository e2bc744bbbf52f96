#include "tiers/io/aio_engine.hpp"

#include "kit/child_process.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace penstock::tiers {
namespace {

class AioEngine : public testing::Test {
 protected:
  void SetUp() override {
    auto works = create_aio_engine({});
    if (!works) GTEST_SKIP() << works.error().message();
  }
};

/// In a child: a read completes, but io_getevents never returns it. 0 when the engine fails and everything returns.
int fails_in_flight(int error) {
  const int zeros = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
  std::array<std::byte, 64> buffer{};
  const IoRequest read{IoOperation::read, FileHandle(zeros), FileOffset(0), HostSpan(std::span(buffer)), 1};
  auto engine = create_aio_engine({.depth = 4, .refusal_time_max = std::chrono::milliseconds(5)}).value();
  std::array<IoCompletion, 4> completions;
  if (!test::refuse_system_call(SYS_io_getevents, error)) return 77;
  if (engine->submit({&read, 1}) != 1) return 2;

  if (engine->reap(completions, forever) != 0) return 3;
  if (engine->failure().find(std::strerror(error)) == std::string::npos) return 4;
  if (engine->submit({&read, 1}) != 1 || engine->reap(completions, forever) != 1) return 5;
  if (completions[0].result != -error) return 6;
  return engine->close(forever) ? 7 : 0;
}

TEST_F(AioEngine, FailsWhenTheKernelReturnsNoCompletions) {
  for (const int error : {EINTR, EINVAL}) {
    EXPECT_EQ(test::in_child([&] { return fails_in_flight(error); }), 0) << std::strerror(error);
  }
}

TEST_F(AioEngine, CompletesARequestThatIsAlwaysInterruptedWithEintr) {
  const int result = test::in_child([] {
    std::array<std::byte, 64> buffer{};
    const IoRequest read{IoOperation::read, FileHandle(0), FileOffset(0), HostSpan(std::span(buffer)), 1};
    auto engine = create_aio_engine({.depth = 4}).value();
    if (!test::refuse_system_call(SYS_io_submit, EINTR)) return 77;
    std::array<IoCompletion, 1> completion;
    if (engine->submit({&read, 1}) != 1 || engine->reap(completion, forever) != 1) return 2;
    return completion[0].result == -EINTR && engine->close(forever) ? 0 : 3;
  });

  EXPECT_EQ(result, 0);
}

/// In a child: 0 when wake() makes reap() return although all calls of `number` fail with `error`.
int wakes_in_spite_of(long number, int error) {
  auto engine = create_aio_engine({.depth = 4}).value();
  std::array<IoCompletion, 1> none;
  if (!test::refuse_system_call(number, error)) return 77;
  engine->wake();
  if (engine->reap(none, forever) != 0) return 2;
  std::thread waker([&] { engine->wake(); });
  const bool woken = engine->reap(none, forever) == 0;
  waker.join();
  return woken && engine->close(forever) ? 0 : 3;
}

TEST_F(AioEngine, IsWokenWhereACallFailsThatCarriesTheWake) {
  EXPECT_EQ(test::in_child([] { return wakes_in_spite_of(SYS_write, EIO); }), 0);
  EXPECT_EQ(test::in_child([] { return wakes_in_spite_of(SYS_read, EINTR); }), 0);
  EXPECT_EQ(test::in_child([] { return wakes_in_spite_of(SYS_ppoll, EINTR); }), 0);
}

}  // namespace
}  // namespace penstock::tiers
