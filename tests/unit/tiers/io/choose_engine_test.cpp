#include "tiers/io/choose_engine.hpp"

#include "kit/child_process.hpp"
#include "kit/scratch_directory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>
#include <initializer_list>
#include <string>

namespace penstock::tiers {
namespace {

/// Which engine is chosen for a file with or without direct I/O in a process that is refused these system
/// calls, and the reported reason: 0 if it is `expected` and the reason contains all of `words`.
int choice_without(std::initializer_list<long> refused, DirectIo direct, const char* expected,
                   std::initializer_list<const char*> words) {
  return test::in_child([&] {
    const test::ScratchDirectory directory;
    const File file = real_file_system().create_scratch(directory.path(), 64_KiB, direct).value();
    if (direct == DirectIo::preferred && !file.properties().direct) return 77;
    for (const long number : refused) {
      if (!test::refuse_system_call(number, EPERM)) return 77;
    }
    auto chosen = choose_engine(EngineChoice::automatic, 8, file.properties());
    if (!chosen) return 3;
    if (chosen->engine->name() != std::string(expected)) return 4;
    for (const char* word : words) {
      if (chosen->reason.find(word) == std::string::npos) return 5;
    }
    return chosen->reason.empty() == (words.size() == 0) ? 0 : 6;
  });
}

#define EXPECT_CHOICE(...)                                                           \
  do {                                                                               \
    const int result = choice_without(__VA_ARGS__);                                  \
    if (result == 77) GTEST_SKIP() << "no direct I/O here, or no seccomp to be had"; \
    EXPECT_EQ(result, 0);                                                            \
  } while (false)

TEST(ChooseEngine, TakesIoUringWhereItWorks) {
  EXPECT_CHOICE({}, DirectIo::preferred, "io_uring", {});
}

TEST(ChooseEngine, TakesLibaioWhereAFilterRefusesToSetUpARing) {
  EXPECT_CHOICE({SYS_io_uring_setup}, DirectIo::preferred, "libaio",
                {"libaio, since", "io_uring is refused", "Operation not permitted"});
}

TEST(ChooseEngine, TakesLibaioWhereAFilterLetsARingBeSetUpAndNotUsed) {
  EXPECT_CHOICE({SYS_io_uring_enter}, DirectIo::preferred, "libaio",
                {"libaio, since", "Operation not permitted"});
}

TEST(ChooseEngine, TakesThreadsWhereBothAreRefused) {
  EXPECT_CHOICE({SYS_io_uring_setup, SYS_io_setup}, DirectIo::preferred, "threads",
                {"threads, since", "io_uring is refused", "Linux AIO is refused"});
  EXPECT_CHOICE({SYS_io_uring_setup, SYS_io_submit}, DirectIo::preferred, "threads",
                {"threads, since", "libaio reading", "Operation not permitted"});
}

TEST(ChooseEngine, PassesOverLibaioWithoutDirectIo) {
  EXPECT_CHOICE({SYS_io_uring_setup}, DirectIo::off, "threads", {"threads, since", "io_uring is refused"});
}

TEST(ChooseEngine, RefusesAnEngineRequestedByNameThatDoesNotWork) {
  const int result = test::in_child([] {
    const test::ScratchDirectory directory;
    const File file = real_file_system().create_scratch(directory.path(), 64_KiB, DirectIo::off).value();
    if (!test::refuse_system_call(SYS_io_uring_setup, EPERM)) return 77;
    auto insisted = choose_engine(EngineChoice::io_uring, 8, file.properties());
    if (insisted || insisted.error().code() != ErrorCode::unsupported) return 2;
    auto other = choose_engine(EngineChoice::libaio, 8, file.properties());
    return other && other->engine->name() == std::string("libaio") && other->reason.empty() ? 0 : 3;
  });
  if (result == 77) GTEST_SKIP() << "no seccomp to be had";

  EXPECT_EQ(result, 0);
}

TEST(ChooseEngine, OpensNothingAsAStandardStreamThatIsClosed) {
  for (const auto choice : {EngineChoice::io_uring, EngineChoice::libaio, EngineChoice::threads}) {
    const int result = test::in_child([choice] {
      const test::ScratchDirectory directory;
      const File file = real_file_system().create_scratch(directory.path(), 64_KiB, DirectIo::off).value();
      for (int stream = 0; stream <= 2; ++stream) ::close(stream);
      const auto chosen = choose_engine(choice, 8, file.properties());
      if (!chosen) return 77;
      for (int stream = 0; stream <= 2; ++stream) {
        if (::fcntl(stream, F_GETFD) != -1) return 2;
      }
      return 0;
    });
    EXPECT_TRUE(result == 0 || result == 77) << to_string(choice) << ": " << result;
  }
}

TEST(ChooseEngine, TakesAnEngineThatASignalOrAShortRefusalInterrupts) {
  struct Case {
    EngineChoice choice;
    long call;
    int error;
  };
  for (const Case& one :
       {Case{EngineChoice::io_uring, SYS_io_uring_enter, EAGAIN},
        Case{EngineChoice::io_uring, SYS_io_uring_enter, EINTR},
        Case{EngineChoice::io_uring, SYS_io_uring_setup, EINTR},
        Case{EngineChoice::io_uring, SYS_io_uring_register, EINTR},
        Case{EngineChoice::libaio, SYS_io_submit, EAGAIN}, Case{EngineChoice::libaio, SYS_io_submit, EINTR},
        Case{EngineChoice::libaio, SYS_io_setup, EINTR}, Case{EngineChoice::threads, SYS_pread64, EINTR},
        Case{EngineChoice::threads, SYS_pread64, EAGAIN}}) {
    for (const unsigned times : {1u, 2u}) {
      const int result = test::in_child([&] {
        const test::ScratchDirectory directory;
        const File file = real_file_system().create_scratch(directory.path(), 64_KiB, DirectIo::off).value();
        if (!choose_engine(one.choice, 8, file.properties())) return 77;
        if (!test::refuse_system_call_times(one.call, one.error, times)) return 77;
        auto chosen = choose_engine(one.choice, 8, file.properties());
        return chosen ? 0 : 2;
      });
      EXPECT_TRUE(result == 0 || result == 77)
          << to_string(one.choice) << ", call " << one.call << ", error " << one.error << ": " << result;
    }
  }
}

TEST(ChooseEngine, ReportsTheOptionsThatTheFileRefused) {
  File::Properties gone{
      .handle = FileHandle(987654), .name = "a file that is closed", .alignment = Alignment(4096)};

  auto refused = choose_engine(EngineChoice::automatic, 8, gone);

  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("a file that is closed"), std::string::npos)
      << refused.error().message();
  EXPECT_NE(refused.error().message().find("Bad file descriptor"), std::string::npos);
}

}  // namespace
}  // namespace penstock::tiers
