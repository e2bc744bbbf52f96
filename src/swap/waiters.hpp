#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

namespace penstock::swap {

/// Threads that wait for conditions on a state under one mutex. The thread that changes the state evaluates the
/// conditions in notify(), so that a thread is woken only when its own condition holds.
class Waiters {
 public:
  /// Returns once `holds()` was true, here or in notify(), always called with the lock held; it is not called again
  /// after that, so it may take what it waited for. Another thread may have made it false before this one returns.
  template <class Condition>
  void wait(std::unique_lock<std::mutex>& lock, const Condition& holds) {
    if (holds()) return;
    Waiter waiter{.condition = &holds, .holds = [](const void* condition) {
                    return (*static_cast<const Condition*>(condition))();
                  }};
    waiting_.push_back(&waiter);
    waiter.woken.wait(lock, [&] { return waiter.held; });
  }

  /// Whether no thread waits. Called with the lock held.
  [[nodiscard]] bool empty() const { return waiting_.empty(); }

  /// Called with the lock held, after a change.
  void notify() {
    std::erase_if(waiting_, [](Waiter* waiter) {
      if (!waiter->holds(waiter->condition)) return false;
      waiter->held = true;
      waiter->woken.notify_one();
      return true;
    });
  }

 private:
  struct Waiter {
    const void* condition;
    bool (*holds)(const void* condition);
    bool held = false;
    std::condition_variable woken{};
  };
  std::vector<Waiter*> waiting_;
};

}  // namespace penstock::swap
