#include "swap/waiters.hpp"

#include <gtest/gtest.h>
#include <mutex>
#include <thread>
#include <vector>

namespace penstock::swap {
namespace {

/// A thread that waits until `is_set`, and what its condition was called by.
struct WaitingThread {
  WaitingThread(std::mutex& of_state, Waiters& waiters)
      : mutex(of_state), thread([this, &waiters] {
          std::unique_lock lock(mutex);
          waiters.wait(lock, [this] {
            callers.push_back(std::this_thread::get_id());
            return is_set;
          });
          returned = true;
        }) {}
  void wait_until_it_waits() {
    while (true) {
      const std::lock_guard lock(mutex);
      if (!callers.empty()) return;
    }
  }

  std::mutex& mutex;
  bool is_set = false, returned = false;
  std::vector<std::thread::id> callers;
  std::jthread thread;
};

TEST(Waiters, EvaluateTheConditionInTheThreadThatChangesTheState) {
  std::mutex mutex;
  Waiters waiters;
  WaitingThread one(mutex, waiters);
  const std::thread::id self = std::this_thread::get_id(), waiting = one.thread.get_id();
  one.wait_until_it_waits();

  for (int i = 0; i < 3; ++i) {
    const std::lock_guard lock(mutex);
    one.is_set = i == 2;
    waiters.notify();
  }

  one.thread.join();
  EXPECT_TRUE(one.returned);
  EXPECT_EQ(one.callers, (std::vector{waiting, self, self, self}));
}

TEST(Waiters, CallNoConditionThatHeld) {
  std::mutex mutex;
  Waiters waiters;
  WaitingThread one(mutex, waiters);
  one.wait_until_it_waits();

  const std::lock_guard lock(mutex);
  one.is_set = true;
  waiters.notify();
  one.is_set = false;  // too late: the thread returns
  waiters.notify();

  EXPECT_EQ(one.callers.size(), 2u);
}

TEST(Waiters, ReturnOneByOneAsTheirConditionsHold) {
  std::mutex mutex;
  Waiters waiters;
  WaitingThread first(mutex, waiters), second(mutex, waiters);
  for (WaitingThread* const one : {&first, &second}) one->wait_until_it_waits();
  for (WaitingThread* const one : {&second, &first}) {
    {
      const std::lock_guard lock(mutex);
      EXPECT_FALSE(one->returned);
      one->is_set = true;
      waiters.notify();
    }
    while (true) {
      const std::lock_guard lock(mutex);
      if (one->returned) break;
    }
  }
}

TEST(Waiters, DoNotWaitForAConditionThatHolds) {
  std::mutex mutex;
  std::unique_lock lock(mutex);

  Waiters().wait(lock, [] { return true; });

  EXPECT_TRUE(lock.owns_lock());
}

}  // namespace
}  // namespace penstock::swap
