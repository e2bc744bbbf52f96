#pragma once

#include <penstock/base/result.hpp>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

namespace penstock::zero {

/// One order of a rank's hops: the trainer's thread appends them at program points, which all ranks share, and a hop
/// goes on once it is the head. Nothing overtakes the head.
class HopOrder {
 public:
  /// The trainer's thread. Returns the hop's number.
  [[nodiscard]] std::uint64_t append() { return appended_++; }
  /// The mover: whether hop `number` is the head, and the end of its being so.
  [[nodiscard]] bool is_head(std::uint64_t number) const { return head_.load() == number; }
  void pop() { head_.fetch_add(1); }

  /// A hop failed, so that no hop becomes the head any more: those behind it fail too, with the first cause.
  void fail(const Error& cause) {
    const std::lock_guard lock(mutex_);
    if (!cause_) cause_ = cause;
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
