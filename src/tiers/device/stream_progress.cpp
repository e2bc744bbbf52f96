#include "tiers/device/stream_progress.hpp"

#include "tiers/device/device_errors.hpp"

#include <algorithm>

namespace penstock::tiers {

using std::chrono::microseconds;

StreamProgress::StreamProgress(const Options& options) : options_(options) {
  if (options.clock != nullptr) running_.emplace(*options.clock, running_time_step(options.deadline));
}

Result<StreamProgress::Point> StreamProgress::record(Stream& stream, EventPool& pool, ByteCount copied,
                                                     std::string subject) {
  PENSTOCK_TRY_ASSIGN(auto fence, pool.record(stream));
  if (waiting_.empty()) note_progress();
  waiting_.push_back(std::make_shared<Entry>(
      Entry{.fence = std::move(fence), .copied = copied, .recorded = now(), .subject = std::move(subject)}));
  return Point(waiting_.back(), passed_ + waiting_.size() - 1);
}

Result<bool> StreamProgress::has_passed(const Point& point) {
  while (point.number_ >= passed_) {
    const Entry& first = *waiting_.front();
    if (point.number_ != passed_ && first.owned) return false;
    if (next_query() > TimePoint::zero()) return false;
    last_query_ = now();
    ++queries_;
    PENSTOCK_TRY_ASSIGN(const bool passed, first.fence->query());
    if (!passed) {
      PENSTOCK_TRY(check_deadline());
      return false;
    }
    note_passed(first);
    note_progress();
    waiting_.pop_front();
    ++passed_;
    queries_ = 0;
  }
  return true;
}

std::string StreamProgress::lost_work() const {
  if (waiting_.empty() || waiting_.front()->fence->query()) return {};
  constexpr std::size_t named_max = 4;
  std::string text = options_.work;
  for (std::size_t i = 0; i < waiting_.size() && i < named_max; ++i) {
    text.append(i == 0 ? ": " : ", ").append(waiting_[i]->subject);
  }
  if (waiting_.size() > named_max)
    text.append(", and ").append(std::to_string(waiting_.size() - named_max)).append(" more");
  return text;
}

void StreamProgress::note_progress() {
  if (!running_) return;
  (void)running_->update();
  progress_ = running_->elapsed();
}

Result<void> StreamProgress::check_deadline() {
  if (!running_) return ok();
  (void)running_->update();
  hangs_ = hangs_ || running_->elapsed() - progress_ > options_.deadline;
  if (hangs_) return device_overdue("StreamProgress::has_passed", options_.work, options_.deadline);
  return ok();
}

/// Since when the stream has had nothing to do before this point.
TimePoint StreamProgress::alone_since(const Entry& first) const {
  return std::max(first.recorded, last_passed_);
}

/// Keeps the highest rate, which a copy has that waited for nothing else, and lets it sink slowly.
void StreamProgress::note_passed(const Entry& first) {
  const TimePoint took = now() - alone_since(first);
  last_passed_ = now();
  if (first.copied.is_zero() || took < microseconds(10))
    return;  // it had passed before the one before was queried
  const double rate = static_cast<double>(first.copied.value()) / static_cast<double>(took.count());
  bytes_per_ns_ = std::max(rate, bytes_per_ns_ * 15 / 16);
}

TimePoint StreamProgress::next_query() const {
  if (waiting_.empty()) return forever;
  if (options_.clock == nullptr) return TimePoint::zero();
  constexpr TimePoint shortest = microseconds(50), longest = microseconds(1000);
  constexpr double longest_expected = 5e6;  // ns
  const Entry& first = *waiting_.front();
  const TimePoint since = alone_since(first);
  const bool was_behind = last_passed_ > first.recorded;  // and may have passed with the point before
  if (was_behind && queries_ == 0) return TimePoint::zero();
  TimePoint due{};
  if (queries_ > (was_behind ? 1u : 0u)) {
    due = last_query_ + std::clamp((last_query_ - since) / 4, shortest, longest);
  } else {
    const double takes = bytes_per_ns_ > 0 ? static_cast<double>(first.copied.value()) / bytes_per_ns_ : 0;
    const TimePoint most(static_cast<std::int64_t>(std::min(0.9 * takes, longest_expected)));
    due = since + std::max(most, shortest);
  }
  return std::max(due - now(), TimePoint::zero());
}

}  // namespace penstock::tiers
