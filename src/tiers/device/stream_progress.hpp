#pragma once

#include "tiers/device/event_pool.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

namespace penstock::tiers {

/// How far a stream is. Of the fences that wait on it only the first is queried: the others cannot have passed before.
///
///     PENSTOCK_TRY_ASSIGN(auto copied, progress.record(pool));
///     …
///     PENSTOCK_TRY_ASSIGN(const bool done, progress.has_passed(copied));
///
/// Used by one thread at a time.
class StreamProgress {
  struct Entry {
    Fence fence;
    bool owned = true;  // its Point exists, whose owner queries it
  };

 public:
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

  /// A point after everything that is enqueued on `stream`, which is the same in all calls.
  ///
  /// Errors: those of the device.
  [[nodiscard]] Result<Point> record(Stream& stream, EventPool& pool);
  /// Queries the event of the first point that the stream has not passed, if that is `point` or has no owner.
  [[nodiscard]] Result<bool> has_passed(const Point& point);

 private:
  std::deque<std::shared_ptr<Entry>> waiting_;
  std::uint64_t passed_ = 0;  // points
};

}  // namespace penstock::tiers
