#pragma once

#include <penstock/base/result.hpp>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

namespace penstock::bench {

/// Calls `work` again and again on a thread of its own, until its first error or the end.
class BackgroundWork {
 public:
  explicit BackgroundWork(std::function<Result<void>()> work)
      : work_(std::move(work)), thread_([this] {
          while (!ends_ && outcome_) outcome_ = work_();
        }) {}
  ~BackgroundWork() { (void)end(); }
  BackgroundWork(const BackgroundWork&) = delete;
  BackgroundWork& operator=(const BackgroundWork&) = delete;

  /// Waits for the call in progress. Errors: that of `work`.
  Result<void> end() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
    return outcome_;
  }

 private:
  const std::function<Result<void>()> work_;
  std::atomic<bool> ends_ = false;
  Result<void> outcome_ = ok();
  std::thread thread_;  // uses the others
};

}  // namespace penstock::bench
