#include "tiers/io/uring_engine.hpp"

#include "kit/child_process.hpp"
#include "kit/pattern.hpp"
#include "kit/sanitizer.hpp"
#include "kit/scratch_directory.hpp"

#include <penstock/tiers/io/file_system.hpp>
#include "tiers/memory/host_arena.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

namespace penstock::tiers {
namespace {

using test::Pattern;

class UringEngine : public testing::Test {
 protected:
  void SetUp() override {
    auto works = create_uring_engine({});
    if (!works) GTEST_SKIP() << works.error().message();
  }
  File scratch(ByteCount size) {
    return real_file_system().create_scratch(directory_.path(), size, DirectIo::preferred).value();
  }
  static std::int64_t run(IoEngine& engine, const IoRequest& request) {
    std::array<IoCompletion, 1> completion;
    if (engine.submit({&request, 1}) != 1) return -EBUSY;
    while (engine.reap(completion, forever) == 0) {
    }
    return completion[0].result;
  }
  /// Writes `bytes` and reads them back; whether they are the same, for a child to return.
  static bool keeps(IoEngine& engine, const File& file, HostSpan bytes) {
    const auto length = static_cast<std::int64_t>(bytes.size().value());
    Pattern{.tensor = 3}.fill(bytes);
    if (run(engine, {IoOperation::write, file.handle(), FileOffset(0), bytes, 1}) != length) return false;
    std::fill_n(bytes.data(), bytes.size().value(), std::byte{0});
    if (run(engine, {IoOperation::read, file.handle(), FileOffset(0), bytes, 2}) != length) return false;
    return !Pattern{.tensor = 3}.first_difference(bytes);
  }

  test::ScratchDirectory directory_;
  HostArena arena_ = HostArena::create({.size = 64_MiB}).value();
};

TEST_F(UringEngine, CompletesEveryRequestWhenClosedWithMoreInFlightThanABatch) {
  auto engine = create_uring_engine({.depth = 64}).value();
  const File file = scratch(64_MiB);
  std::vector<IoRequest> reads;
  for (std::uint64_t i = 0; i < 64; ++i) {
    reads.push_back({IoOperation::read, file.handle(), FileOffset(i << 20),
                     arena_.bytes().subspan(ByteCount(i << 20), 1_MiB), i});
  }
  ASSERT_EQ(engine->submit(reads), 64u);

  EXPECT_TRUE(engine->close(forever));

  EXPECT_EQ(engine->in_flight(), 64u);
  std::set<std::uint64_t> tags;
  std::array<IoCompletion, 5> batch;
  while (const std::size_t count = engine->reap(batch, forever)) {
    for (std::size_t i = 0; i < count; ++i) EXPECT_TRUE(tags.insert(batch[i].tag).second);
  }
  EXPECT_EQ(tags.size(), 64u);
  EXPECT_EQ(engine->in_flight(), 0u);
}

TEST_F(UringEngine, CompletesRequestsWithTheErrnoWhenTheKernelAcceptsNoMore) {
  const File file = scratch(1_MiB);
  const int failed_line = test::in_child([&] {
    auto engine = create_uring_engine({.depth = 4}).value();
    if (!test::refuse_system_call(SYS_io_uring_enter, EPERM)) return __LINE__ % 256;
    std::array<IoRequest, 6> requests;
    requests.fill({IoOperation::read, file.handle(), FileOffset(0), arena_.bytes().subspan(0_B, 4_KiB), 7});
    std::array<IoCompletion, 6> completions;

    for (int again = 0; again < 2; ++again) {
      if (engine->submit(requests) != 4) return __LINE__ % 256;
      if (engine->reap(completions, forever) != 4) return __LINE__ % 256;
      for (int i = 0; i < 4; ++i) {
        if (completions[static_cast<std::size_t>(i)].result != -EPERM) return __LINE__ % 256;
      }
    }
    engine->wake();
    if (engine->reap(completions, forever) != 0) return __LINE__ % 256;
    EXPECT_TRUE(engine->close(forever));
    return 0;
  });

  EXPECT_EQ(failed_line, 0) << "line (modulo 256) of this file, or minus a signal";
}

/// In a child: while a read of an empty pipe is in flight, io_uring_enter fails with `error` for ever. 0 when the
/// engine then fails, as its contract says, and everything returns.
int fails_in_flight(int error, HostSpan buffer) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return 2;
  const IoRequest stuck{IoOperation::read, FileHandle(pipe[0]), FileOffset(0), buffer, 1};
  const IoRequest late{IoOperation::read, FileHandle(pipe[0]), FileOffset(0), buffer, 2};
  auto engine = create_uring_engine({.depth = 4, .refusal_time_max = std::chrono::milliseconds(5)}).value();
  std::array<IoCompletion, 4> completions;
  if (engine->submit({&stuck, 1}) != 1 || engine->reap(completions, TimePoint::min()) != 0) return 3;
  if (!engine->failure().empty()) return 4;
  if (!test::refuse_system_call(SYS_io_uring_enter, error)) return 77;

  if (engine->submit({&late, 1}) != 1) return 5;
  std::size_t count = 0;
  for (int turn = 0; turn < 3 && count == 0; ++turn) count = engine->reap(completions, forever);
  if (count != 1 || completions[0].tag != 2 || completions[0].result != -error) return 6;
  if (engine->failure().find(std::strerror(error)) == std::string::npos) return 7;
  engine->wake();
  if (engine->reap(completions, forever) != 0) return 8;
  return engine->close(forever) ? 9 : 0;
}

TEST_F(UringEngine, FailsWithoutEndingTheProcessWhenTheKernelAcceptsNoMoreWithARequestInFlight) {
  for (const int error : {EBADF, EEXIST, EINVAL}) {
    EXPECT_EQ(test::in_child([&] { return fails_in_flight(error, arena_.bytes().subspan(0_B, 4_KiB)); }), 0)
        << std::strerror(error);
  }
}

TEST_F(UringEngine, FailsWhenTheKernelRefusesForTooLong) {
  for (const int error : {EAGAIN, EBUSY, EINTR, ENOMEM}) {
    EXPECT_EQ(test::in_child([&] { return fails_in_flight(error, arena_.bytes().subspan(0_B, 4_KiB)); }), 0)
        << std::strerror(error);
  }
}

TEST_F(UringEngine, WaitsOutARefusalThatEnds) {
  const File file = scratch(1_MiB);
  const int result = test::in_child([&] {
    const auto arena = HostArena::create({.size = 2_MiB}).value();  // no child inherits one
    auto engine = create_uring_engine({.depth = 4}).value();
    if (!test::refuse_system_call_times(SYS_io_uring_enter, ENOMEM, 20)) return 77;
    return keeps(*engine, file, arena.bytes().subspan(0_B, 64_KiB)) && engine->failure().empty() ? 0 : 2;
  });
  if (result == 77) GTEST_SKIP() << "no seccomp to be had";

  EXPECT_EQ(result, 0);
}

/// In a child: 0 when wake() makes reap() return although all calls of `number` fail with `error`, first before the
/// driver has waited, then after.
int wakes_in_spite_of(long number, int error) {
  auto engine = create_uring_engine({.depth = 4, .refusal_time_max = std::chrono::milliseconds(5)}).value();
  std::array<IoCompletion, 1> none;
  if (engine->reap(none, Clock::steady().now() + std::chrono::milliseconds(1)) != 0) return 2;
  if (!test::refuse_system_call(number, error)) return 77;
  for (int again = 0; again < 2; ++again) {
    engine->wake();
    if (engine->reap(none, forever) != 0) return 3;
  }
  std::thread waker([&] { engine->wake(); });
  const bool woken = engine->reap(none, forever) == 0;
  waker.join();
  return woken && engine->close(forever) ? 0 : 4;
}

TEST_F(UringEngine, IsWokenWhereACallFailsThatCarriesTheWake) {
  for (const auto& [number, error] :
       {std::pair(SYS_write, EIO), std::pair(SYS_write, EINTR), std::pair(SYS_read, EINTR),
        std::pair(SYS_io_uring_enter, EAGAIN), std::pair(SYS_io_uring_enter, EINTR),
        std::pair(SYS_io_uring_enter, EBADF)}) {
    // The sanitizer would repeat its own writes for ever.
    if (test::address_sanitizer && number == SYS_write && error == EINTR) continue;
    EXPECT_EQ(test::in_child([&] { return wakes_in_spite_of(number, error); }), 0)
        << number << ": " << std::strerror(error);
  }
}

TEST_F(UringEngine, AdvisesAHigherLimitWhereTooManyFilesAreOpenAndAProfileWhereItIsFiltered) {
  if (test::address_sanitizer) GTEST_SKIP() << "the sanitizer needs descriptors to examine an object";
  const int limited = test::in_child([] {
    const rlimit limit{3, 3};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
    const std::string message = create_uring_engine({}).error().message();
    if (message.find("seccomp") != std::string::npos) return 3;
    return message.find("ulimit -n") == std::string::npos ? 4 : 0;
  });
  const int locked = test::in_child([] {
    if (!test::refuse_system_call(SYS_io_uring_setup, ENOMEM)) return 77;
    const std::string message = create_uring_engine({}).error().message();
    return message.find("ulimit -l") == std::string::npos ? 3 : 0;
  });
  const int filtered = test::in_child([] {
    if (!test::refuse_system_call(SYS_io_uring_setup, EPERM)) return 77;
    return create_uring_engine({}).error().message().find("seccomp") == std::string::npos ? 3 : 0;
  });

  EXPECT_EQ(limited, 0);
  EXPECT_EQ(locked, 0);
  EXPECT_EQ(filtered, 0);
}

TEST_F(UringEngine, WorksWhereRegisteringIsRefused) {
  const File file = scratch(1_MiB);
  const int result = test::in_child([&] {
    if (!test::refuse_system_call(SYS_io_uring_register, EPERM)) return 2;
    const auto arena = HostArena::create({.size = 64_MiB}).value();  // no child inherits one
    auto engine = create_uring_engine({.depth = 4}).value();
    engine->attach(file.handle(), arena.bytes());
    if (engine->notes().find("buffers not registered") == std::string::npos) return 3;
    return keeps(*engine, file, arena.bytes().subspan(0_B, 64_KiB)) ? 0 : 4;
  });

  EXPECT_EQ(result, 0);
}

TEST_F(UringEngine, WorksWithBuffersThatTheMemoryLimitKeepsFromBeingRegistered) {
  const File file = scratch(1_MiB);
  const int result = test::in_child([&] {
    if (!test::limit_locked_memory(8 << 20)) return 2;
    const auto arena = HostArena::create({.size = 64_MiB}).value();  // no child inherits one
    auto engine = create_uring_engine({.depth = 4}).value();
    engine->attach(file.handle(), arena.bytes());
    if (engine->notes().find("buffers not registered") == std::string::npos) return 3;
    if (engine->notes().find("RLIMIT_MEMLOCK") == std::string::npos) return 4;
    return keeps(*engine, file, arena.bytes().subspan(0_B, 64_KiB)) ? 0 : 5;
  });

  EXPECT_EQ(result, 0);
}

TEST_F(UringEngine, MovesBytesOnBothSidesOfAGibibyteOfRegisteredMemory) {
  auto large = HostArena::create({.size = 1_GiB + 2_MiB});
  if (!large) GTEST_SKIP() << large.error().message();
  auto engine = create_uring_engine({.depth = 4}).value();
  const File file = scratch(1_MiB);

  engine->attach(file.handle(), large->bytes());

  EXPECT_TRUE(keeps(*engine, file, large->bytes().subspan(1_GiB - 8_KiB, 8_KiB)));
  EXPECT_TRUE(keeps(*engine, file, large->bytes().subspan(1_GiB - 4_KiB, 8_KiB)));
  EXPECT_TRUE(keeps(*engine, file, large->bytes().subspan(1_GiB, 8_KiB)));
  EXPECT_TRUE(engine->close(forever));
}

TEST_F(UringEngine, WritesToTheFileThatADescriptorNamesNow) {
  auto engine = create_uring_engine({.depth = 4}).value();
  const HostSpan bytes = arena_.bytes().subspan(0_B, 4_KiB), found = arena_.bytes().subspan(4_KiB, 4_KiB);
  FileHandle before;
  {
    const File first = scratch(4_KiB);
    before = first.handle();
    engine->attach(before, {});
  }
  const File second = scratch(4_KiB);
  ASSERT_EQ(second.handle(), before);

  engine->attach(second.handle(), {});

  EXPECT_TRUE(keeps(*engine, second, bytes));
  EXPECT_EQ(::pread(static_cast<int>(second.handle()), found.data(), 4096, 0), 4096);
  EXPECT_FALSE(Pattern{.tensor = 3}.first_difference(found));
}

TEST_F(UringEngine, ReturnsFromCloseAtItsDeadlineWhenTheKernelDoesNotFinish) {
  // A pipe without a writer. A read that has begun on a kernel worker may not be cancelled
  // in time; with a poll it is. In both cases close returns.
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  auto engine = create_uring_engine({.depth = 4});
  ASSERT_TRUE(engine);
  alignas(4096) static std::array<std::byte, 4096> buffer;
  const IoRequest read{IoOperation::read, FileHandle(ends[0]), FileOffset(0), HostSpan(std::span(buffer)), 1};
  ASSERT_EQ((*engine)->submit({&read, 1}), 1u);

  const bool at_rest = (*engine)->close(Clock::steady().now() + std::chrono::milliseconds(50));

  std::array<IoCompletion, 2> completions;
  EXPECT_EQ((*engine)->reap(completions, TimePoint::min()), at_rest ? 1u : 0u);
  engine->reset();
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace penstock::tiers
