#include <penstock/tiers/device/stream_clock.hpp>

#include <string>
#include <utility>

namespace penstock::tiers {

StreamClock::Mark StreamClock::mark(StreamHandle stream) {
  Mark number = 0;
  if (released_.empty()) {
    number = static_cast<Mark>(states_.size());
    states_.emplace_back();
  } else {
    number = released_.back();
    released_.pop_back();
  }
  states_[number] = {.used = true};
  if (!status_) return number;
  if (auto recorded = record(number, stream); !recorded) fail(std::move(recorded).error());
  return number;
}

std::optional<TimePoint> StreamClock::passed(Mark mark) {
  if (!check_used(mark)) return Clock::steady().now();
  std::optional<TimePoint>& passed = states_[mark].passed;
  if (passed) return passed;
  if (!status_) return Clock::steady().now();
  auto queried = query(mark);
  if (!queried) {
    fail(std::move(queried).error());
    return Clock::steady().now();
  }
  return passed = *queried;
}

void StreamClock::release(Mark mark) {
  if (!check_used(mark)) return;
  states_[mark].used = false;
  released_.push_back(mark);
}

bool StreamClock::check_used(Mark mark) {
  if (mark < states_.size() && states_[mark].used) return true;
  fail(Error::invalid_argument("StreamClock")
           .object("mark")
           .wanted("one that mark() returned and that was not released")
           .got(mark));
  return false;
}

void StreamClock::fail(Error error) {
  if (status_) status_ = std::move(error);
}

}  // namespace penstock::tiers
