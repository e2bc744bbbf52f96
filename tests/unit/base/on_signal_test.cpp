#include <penstock/base/on_signal.hpp>

#include "kit/sanitizer.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <csignal>
#include <semaphore>

namespace penstock {
namespace {

using namespace std::chrono_literals;

/// Counts calls, and waits for them.
struct Calls {
  void operator()() { semaphore.release(); }
  [[nodiscard]] bool wait() { return comes_within(30s); }
  [[nodiscard]] bool comes_within(std::chrono::milliseconds time) { return semaphore.try_acquire_for(time); }
  std::counting_semaphore<> semaphore{0};
};

std::atomic<int> former_calls = 0;

TEST(OnSignal, CallsItsFunctionEachTime) {
  Calls calls;
  const auto asked = OnSignal::create(SIGUSR1, [&] { calls(); }).value();
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(::raise(SIGUSR1), 0);
    ASSERT_TRUE(calls.wait());
  }
  EXPECT_FALSE(calls.comes_within(10ms));
}

TEST(OnSignal, CallsOnceMoreForSignalsDuringACall) {
  Calls calls;
  std::binary_semaphore go(0);
  const auto asked = OnSignal::create(SIGUSR1, [&] {
                       calls();
                       go.acquire();
                     }).value();
  ASSERT_EQ(::raise(SIGUSR1), 0);
  ASSERT_TRUE(calls.wait());
  for (int i = 0; i < 100; ++i) ASSERT_EQ(::raise(SIGUSR1), 0);
  go.release();
  ASSERT_TRUE(calls.wait());
  go.release();
  EXPECT_FALSE(calls.comes_within(50ms));
}

TEST(OnSignal, GivesTheSignalBack) {
  former_calls = 0;
  struct sigaction before {};
  before.sa_handler = [](int) { ++former_calls; };
  ASSERT_EQ(::sigaction(SIGUSR2, &before, nullptr), 0);
  for (int i = 0; i < 2; ++i) {
    Calls calls;
    auto asked = OnSignal::create(SIGUSR2, [&] { calls(); }).value();
    ASSERT_EQ(::raise(SIGUSR2), 0);
    ASSERT_TRUE(calls.wait());
    asked.reset();
    ASSERT_EQ(::raise(SIGUSR2), 0);
    EXPECT_EQ(former_calls, i + 1);
    EXPECT_FALSE(calls.comes_within(10ms));
  }
  ASSERT_NE(std::signal(SIGUSR2, SIG_DFL), SIG_ERR);
}

TEST(OnSignal, LeavesAnActionThatWasSetMeanwhile) {
  auto asked = OnSignal::create(SIGUSR2, [] {}).value();
  ASSERT_NE(std::signal(SIGUSR2, SIG_IGN), SIG_ERR);
  asked.reset();
  EXPECT_EQ(std::signal(SIGUSR2, SIG_DFL), SIG_IGN);
}

TEST(OnSignal, RefusesASecondObjectForASignal) {
  const auto first = OnSignal::create(SIGUSR1, [] {}).value();
  const auto second = OnSignal::create(SIGUSR1, [] {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::already_exists);
  EXPECT_TRUE(OnSignal::create(SIGUSR2, [] {}));
}

TEST(OnSignal, RefusesSignalsWithoutAHandlerAndAnEmptyFunction) {
  for (const int signal : {SIGKILL, SIGSTOP, SIGSEGV, SIGABRT, 0, -1, 10'000}) {
    const auto refused = OnSignal::create(signal, [] {});
    ASSERT_FALSE(refused) << signal;
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  }
  EXPECT_EQ(OnSignal::create(SIGUSR1, {}).error().code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(OnSignal::create(SIGUSR1, [] {})) << "a refusal takes nothing";
}

// In a forked process the object's thread does not exist; its signals are none of this process's.
TEST(OnSignal, IsNotAskedByAForkedProcess) {
  if (test::any_sanitizer) GTEST_SKIP() << "no threads after a fork of a process with threads";
  Calls calls;
  auto asked = OnSignal::create(SIGUSR1, [&] { calls(); }).value();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ::raise(SIGUSR1);
    Calls own;
    auto of_child = OnSignal::create(SIGUSR1, [&] { own(); });
    if (!of_child) ::_exit(1);
    ::raise(SIGUSR1);
    if (!own.wait()) ::_exit(2);
    of_child->reset();
    asked.reset();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(calls.comes_within(50ms));
  ASSERT_EQ(::raise(SIGUSR1), 0);
  EXPECT_TRUE(calls.wait());
}

}  // namespace
}  // namespace penstock
