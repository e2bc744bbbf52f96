#include "tiers/device/host_stream_clock.hpp"

#include <atomic>
#include <cstdint>
#include <vector>

namespace penstock::tiers {

namespace {

class HostStreamClock final : public StreamClock {
  Result<void> record(Mark mark, StreamHandle stream) override {
    HostQueue* const queue = stream.host_queue();
    if (queue == nullptr) {
      return Error::invalid_argument("StreamClock::mark")
          .object("stream")
          .wanted("a stream of the device")
          .got("a default handle");
    }
    if (mark >= times_.size()) times_.resize(mark + 1);
    // A stream that has not passed a mark that was released stores its time still.
    if (times_[mark] == nullptr || times_[mark].use_count() > 1) times_[mark] = std::make_shared<Time>();
    times_[mark]->store(not_passed);
    queue->enqueue([time = times_[mark]] { time->store(Clock::steady().now().count()); });
    return ok();
  }

  Result<std::optional<TimePoint>> query(Mark mark) override {
    const std::int64_t time = times_[mark]->load();
    if (time == not_passed) return std::optional<TimePoint>();
    return std::optional(TimePoint(time));
  }

  using Time = std::atomic<std::int64_t>;
  static constexpr std::int64_t not_passed = -1;

  std::vector<std::shared_ptr<Time>> times_;  // shared with the queues
};

}  // namespace

std::unique_ptr<StreamClock> make_host_stream_clock() {
  return std::make_unique<HostStreamClock>();
}

}  // namespace penstock::tiers
