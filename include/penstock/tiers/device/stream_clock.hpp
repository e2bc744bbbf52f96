#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/stream.hpp>
#include <penstock/base/time.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::tiers {

/// Reads the times at which streams of one device pass marks: see Device::create_clock(). Used by one thread at a time.
/// Nothing blocks. Marks that were released are used again, so that a steady number of them allocates nothing.
class StreamClock {
 public:
  using Mark = std::uint32_t;

  StreamClock() = default;
  StreamClock(const StreamClock&) = delete;
  StreamClock& operator=(const StreamClock&) = delete;
  virtual ~StreamClock() = default;

  /// Marks the end of what is enqueued on the stream.
  Mark mark(StreamHandle stream);
  /// When the stream passed the mark, on Clock::steady(); empty if it has not yet. After an error it is now.
  std::optional<TimePoint> passed(Mark mark);
  void release(Mark mark);
  /// The first error: the device's, or invalid_argument, for a stream or mark that does not exist. Streams are not
  /// marked any more then.
  [[nodiscard]] const Result<void>& status() const { return status_; }

 protected:
  /// Marks the end of what is enqueued. Numbers count from 0; those of released marks come again.
  virtual Result<void> record(Mark mark, StreamHandle stream) = 0;
  /// When the stream passed the mark that was recorded last under this number, if it has.
  [[nodiscard]] virtual Result<std::optional<TimePoint>> query(Mark mark) = 0;

 private:
  struct State {
    bool used = false;
    std::optional<TimePoint> passed;
  };
  void fail(Error error);
  [[nodiscard]] bool check_used(Mark mark);

  std::vector<State> states_;
  std::vector<Mark> released_;
  Result<void> status_ = ok();
};

}  // namespace penstock::tiers
