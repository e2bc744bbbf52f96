#pragma once

#include <penstock/tiers/device/stream_clock.hpp>

#include <optional>
#include <utility>

namespace penstock::test {

/// A clock whose streams pass marks when the test says so.
class ManualStreamClock final : public tiers::StreamClock {
 public:
  /// The streams pass the first `count` marks, each 100 ns after the one before.
  void pass(std::uint32_t count) { passed_ = count; }
  /// From now on the device has failed.
  void fail() { failed_ = true; }
  /// How many numbers of marks there are.
  [[nodiscard]] std::size_t numbers() const { return order_.size(); }

 private:
  Result<void> record(Mark mark, StreamHandle) override {
    if (failed_) return Error(ErrorCode::io, "ManualStreamClock");
    if (order_.size() <= mark) order_.resize(mark + 1);
    order_[mark] = recorded_++;
    return ok();
  }
  Result<std::optional<TimePoint>> query(Mark mark) override {
    if (failed_) return Error(ErrorCode::io, "ManualStreamClock");
    const std::uint32_t at = order_[mark];
    return at < passed_ ? std::optional(TimePoint(100 * at)) : std::nullopt;
  }

  std::vector<std::uint32_t> order_;  // by mark, the place of its record among all
  std::uint32_t recorded_ = 0, passed_ = 0;
  bool failed_ = false;
};

}  // namespace penstock::test
