// How MPI starts and ends. Each case needs a process that has not called MPI.
#include "zero/comm/mpi/mpi_session.hpp"

#include "kit/child_process.hpp"
#include "mpi_calls.hpp"
#include "zero/comm/mpi/mpi_pipes.hpp"

#include <gtest/gtest.h>
#include <mpi.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace penstock::zero {
namespace {

using namespace std::chrono_literals;
using penstock::test::in_child;

/// The status of a child in which `body` finds nothing wrong is 0.
int outcome(const char* wrong) {
  if (*wrong != '\0') std::fprintf(stderr, "%s\n", wrong);
  return *wrong == '\0' ? 0 : 1;
}

TEST(MpiSession, InitialisesMpiForAllThreads) {
  EXPECT_EQ(in_child([] {
              const auto first = MpiSession::start(forever), second = MpiSession::start(60s);
              int provided = 0;
              if (!first || !second || MPI_Query_thread(&provided) != MPI_SUCCESS)
                return outcome("not started");
              return outcome(provided == MPI_THREAD_MULTIPLE ? "" : "fewer threads");
            }),
            0);
}

TEST(MpiSession, UsesMpiThatTheApplicationHasInitialised) {
  EXPECT_EQ(in_child([] {
              int provided = 0;
              MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
              if (!MpiSession::start(60s)) return outcome("not started");
              std::atexit([] {
                if (MpiSession::is_finalized()) std::_Exit(3);  // that is for the application
                std::_Exit(0);
              });
              std::exit(2);
              return 1;
            }),
            0);
}

TEST(MpiSession, RefusesMpiOfFewerThreads) {
  EXPECT_EQ(in_child([] {
              int provided = 0;
              MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
              const auto session = MpiSession::start(60s);
              if (session) return outcome("started");
              if (session.error().code() != ErrorCode::unsupported) return outcome("another code");
              const std::string expected =
                  "MPI was initialised for fewer threads, wanted MPI_THREAD_MULTIPLE, got "
                  "MPI_THREAD_FUNNELED [MpiSession::start]\n  try     pass MPI_THREAD_MULTIPLE to "
                  "MPI_Init_thread, or leave the initialisation to Penstock";
              return outcome(session.error().message() == expected ? "" : session.error().message().c_str());
            }),
            0);
}

TEST(MpiSession, RefusesMpiThatIsFinalised) {
  EXPECT_EQ(in_child([] {
              MPI_Init(nullptr, nullptr);
              MPI_Finalize();
              const auto session = MpiSession::start(60s);
              return outcome(!session && session.error().code() == ErrorCode::failed_state ? "" : "started");
            }),
            0);
}

// Handlers that were registered before that of the session run after it.

TEST(MpiSession, FinalisesMpiAtExit) {
  EXPECT_EQ(in_child([] {
              std::atexit([] { std::_Exit(MpiSession::is_finalized() ? 0 : 3); });
              { const auto session = MpiSession::start(60s); }
              std::exit(2);
              return 1;
            }),
            0);
}

TEST(MpiSession, DoesNotFinaliseMpiThatIsInUse) {
  EXPECT_EQ(in_child([] {
              std::atexit([] { std::_Exit(MpiSession::is_finalized() ? 3 : 0); });
              const auto session = MpiSession::start(60s);
              std::exit(2);
              return 1;
            }),
            0);
}

TEST(MpiSession, LetsAForkedProcessExit) {
  EXPECT_EQ(in_child([] {
              { const auto session = MpiSession::start(60s); }
              return in_child([] {
                std::exit(0);
                return 1;
              });
            }),
            0);
}

TEST(MpiPipes, WaitReturnsWhenItIsWoken) {
  EXPECT_EQ(in_child([] {
              auto pipes = MpiPipes::open({.rank = 0, .ranks = 1, .deadline = 60s});
              if (!pipes) return outcome(pipes.error().message().c_str());
              const PeerPipes::Interest none[1];
              (*pipes)->wake();
              (*pipes)->wait(none, forever);  // woken before
              std::thread other([&] { (*pipes)->wake(); });
              (*pipes)->wait(none, forever);
              other.join();
              (*pipes)->wait(none, 0s);
              return 0;
            }),
            0);
}

TEST(MpiPipes, OpenUntilTheDeadline) {
  EXPECT_EQ(in_child([] {
              if (const auto session = MpiSession::start(60s); !session) return outcome("not started");
              test::MpiCalls::instance().nothing_ends = true;
              const auto pipes = MpiPipes::open({.rank = 0, .ranks = 1, .deadline = 10ms});
              return outcome(!pipes && pipes.error().code() == ErrorCode::deadline_exceeded ? "" : "opened");
            }),
            0);
}

TEST(MpiPipes, RefuseAnotherRankThanThatOfMpi) {
  EXPECT_EQ(in_child([] {
              const auto pipes = MpiPipes::open({.rank = 1, .ranks = 4, .deadline = 60s});
              if (pipes) return outcome("opened");
              const std::string expected =
                  "MPI gives this process another rank than its launcher, wanted rank 1 of 4, got rank 0 of "
                  "1 [MpiPipes::open]\n  try     start all ranks, and nothing else, with the mpirun of the "
                  "same MPI, and give no other rank";
              return outcome(pipes.error().message() == expected ? "" : pipes.error().message().c_str());
            }),
            0);
}

}  // namespace
}  // namespace penstock::zero
