#include "gpt/stream_clock.hpp"

#include <atomic>
#include <vector>

namespace gpt {

using penstock::Clock;
using penstock::TimePoint;

namespace {

class HostStreamClock final : public StreamClock {
 public:
  Mark mark(penstock::StreamHandle stream) override {
    Mark number = 0;
    if (released_.empty()) {
      number = static_cast<Mark>(times_.size());
      times_.push_back(std::make_shared<Time>());
    } else {
      number = released_.back();
      released_.pop_back();
    }
    times_[number]->store(not_passed);
    stream.host_queue()->enqueue([time = times_[number]] { time->store(Clock::steady().now().count()); });
    return number;
  }

  std::optional<TimePoint> passed(Mark mark) override {
    const std::int64_t time = times_[mark]->load();
    if (time == not_passed) return std::nullopt;
    return TimePoint(time);
  }

  void release(Mark mark) override { released_.push_back(mark); }
  penstock::Result<void> status() const override { return penstock::ok(); }

 private:
  using Time = std::atomic<std::int64_t>;
  static constexpr std::int64_t not_passed = -1;

  std::vector<std::shared_ptr<Time>> times_;  // shared with the queues
  std::vector<Mark> released_;
};

}  // namespace

std::unique_ptr<StreamClock> make_host_stream_clock() {
  return std::make_unique<HostStreamClock>();
}

}  // namespace gpt
