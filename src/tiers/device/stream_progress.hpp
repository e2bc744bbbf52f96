#pragma once

#include "tiers/device/event_pool.hpp"
#include "tiers/io/running_time.hpp"

#include <penstock/base/time.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace penstock::tiers {

/// How far a stream is. Of the fences that wait on it only the first is queried: the others cannot have passed before.
/// With a clock it is queried when it may have passed, not in every call: after most of the time that its bytes take at
/// the rate seen so far, then each time a quarter of the time waited later.
///
///     PENSTOCK_TRY_ASSIGN(auto copied, progress.record(stream, pool, bytes.size()));
///     …
///     PENSTOCK_TRY_ASSIGN(const bool done, progress.has_passed(copied));  // else again after next_query()
///
/// With a clock, a stream that passes no point for the deadline hangs: has_passed() returns an error from then on, and
/// the copies may still use their memory. Only time in which has_passed() is called counts.
///
/// Used by one thread at a time.
class StreamProgress {
  struct Entry {
    Fence fence;
    ByteCount copied;
    TimePoint recorded{};
    std::string subject;
    bool owned = true;  // its Point exists, whose owner queries it
  };

 public:
  struct Options {
    const Clock* clock = nullptr;  ///< outlives it. Null: every call queries, where time is not the clock's
    TimePoint deadline = forever;
    const char* work = "copies";  ///< what is enqueued on the stream, for messages
  };
  explicit StreamProgress(const Options& options);

  /// A fence of the stream. Move-only; destroyed by the thread that uses the progress.
  class Point {
   public:
    Point() = default;
    Point(Point&& other) noexcept { swap(other); }
    Point& operator=(Point&& other) noexcept {
      swap(other);
      return *this;
    }
    ~Point() {
      if (entry_ != nullptr) entry_->owned = false;
    }
    [[nodiscard]] const Fence& fence() const { return entry_->fence; }

   private:
    friend class StreamProgress;
    Point(std::shared_ptr<Entry> entry, std::uint64_t number) : entry_(std::move(entry)), number_(number) {}
    void swap(Point& other) noexcept {
      std::swap(entry_, other.entry_);
      std::swap(number_, other.number_);
    }
    std::shared_ptr<Entry> entry_;
    std::uint64_t number_ = 0;
  };

  /// A point after everything that is enqueued on `stream`, which is the same in all calls. `copied`: the bytes that
  /// the stream copies between the last point and this one. `subject`: what they are, for lost_work().
  ///
  /// Errors: those of the device.
  [[nodiscard]] Result<Point> record(Stream& stream, EventPool& pool, ByteCount copied, std::string subject);
  /// Queries the event of the first point that the stream has not passed, if that is `point` or has no owner, and if
  /// next_query() is zero.
  ///
  /// Errors: those of the device; deadline_exceeded, if the stream hangs.
  [[nodiscard]] Result<bool> has_passed(const Point& point);
  [[nodiscard]] bool hangs() const { return hangs_; }
  /// If the device has failed: the work of the stream that was not seen to end, in its order, for a message. Else
  /// empty.
  [[nodiscard]] std::string lost_work() const;
  /// The time from now until has_passed() queries. forever if the stream has passed all points; zero without a clock.
  [[nodiscard]] TimePoint next_query() const;

 private:
  [[nodiscard]] TimePoint now() const {
    return options_.clock == nullptr ? TimePoint{} : options_.clock->now();
  }
  void note_progress();
  [[nodiscard]] Result<void> check_deadline();
  [[nodiscard]] TimePoint alone_since(const Entry& first) const;
  void note_passed(const Entry& first);

  const Options options_;
  std::optional<RunningTime> running_;  // with a clock
  TimePoint progress_{};  // when the last point was passed, or the first one recorded, in running time
  bool hangs_ = false;
  std::deque<std::shared_ptr<Entry>> waiting_;
  std::uint64_t passed_ = 0;  // points
  TimePoint last_passed_{}, last_query_{};
  std::uint32_t queries_ = 0;  // of the first point
  double bytes_per_ns_ = 0;
};

}  // namespace penstock::tiers
