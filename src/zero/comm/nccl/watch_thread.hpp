#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace penstock::zero {

/// A thread that calls a function again and again: after each `interval`, and soon after nudge(). Its destructor waits
/// for the call in progress. Safe from any thread.
class WatchThread {
 public:
  /// Errors: no_space, where no thread can be started.
  [[nodiscard]] static Result<std::unique_ptr<WatchThread>> start(TimePoint interval,
                                                                  std::function<void()> look);
  WatchThread(const WatchThread&) = delete;
  WatchThread& operator=(const WatchThread&) = delete;
  ~WatchThread();

  void nudge() noexcept;

 private:
  WatchThread() = default;
  void run(TimePoint interval, const std::function<void()>& look);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool nudged_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace penstock::zero
