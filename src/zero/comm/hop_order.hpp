#pragma once

#include <penstock/base/result.hpp>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

namespace penstock::zero {

/// A queue that orders hops. The trainer's thread appends hops at program points, in the same order on all ranks. A hop
/// may run only while it is the head of the queue.
class HopOrder {
 public:
  /// Appends a hop and returns its number. Called by the trainer's thread.
  [[nodiscard]] std::uint64_t append() { return appended_++; }
  /// Called by the mover: is_head() tells whether hop `number` is the head; pop() removes the head.
  [[nodiscard]] bool is_head(std::uint64_t number) const { return head_.load() == number; }
  void pop() { head_.fetch_add(1); }

  /// Records that a hop failed and will not be removed: the hops after it fail too, with the first cause.
  void fail(const Error& cause) {
    const std::lock_guard lock(mutex_);
    if (!cause_) cause_ = cause;
  }
  /// Forgets the hops that failed and the cause. Precondition: none of the appended hops runs any more.
  void reset() {
    const std::lock_guard lock(mutex_);
    head_.store(appended_);
    cause_.reset();
  }
  [[nodiscard]] std::optional<Error> failure() const {
    const std::lock_guard lock(mutex_);
    return cause_;
  }

 private:
  std::uint64_t appended_ = 0;
  std::atomic<std::uint64_t> head_{0};
  mutable std::mutex mutex_;
  std::optional<Error> cause_;
};

}  // namespace penstock::zero
