#include "tiers/device/stream_progress.hpp"

namespace penstock::tiers {

Result<StreamProgress::Point> StreamProgress::record(Stream& stream, EventPool& pool) {
  PENSTOCK_TRY_ASSIGN(auto fence, pool.record(stream));
  waiting_.push_back(std::make_shared<Entry>(Entry{.fence = std::move(fence)}));
  return Point(waiting_.back(), passed_ + waiting_.size() - 1);
}

Result<bool> StreamProgress::has_passed(const Point& point) {
  while (point.number_ >= passed_) {
    const Entry& first = *waiting_.front();
    if (point.number_ != passed_ && first.owned) return false;
    PENSTOCK_TRY_ASSIGN(const bool passed, first.fence->query());
    if (!passed) return false;
    waiting_.pop_front();
    ++passed_;
  }
  return true;
}

}  // namespace penstock::tiers
