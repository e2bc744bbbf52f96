#pragma once

#include "swap/timeline.hpp"

#include <penstock/base/stream.hpp>
#include <penstock/tiers/device/stream_clock.hpp>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::swap {

/// What streams of a device do, in tracks of a timeline, with the times at which the device did it. A stream has the
/// track that name() gives it, else `others`. Once the clock has failed, nothing more is written, and the timeline has
/// a message.
///
/// Safe from any thread. Waits for nothing but its lock, and where a device's queue is full, for that.
class StreamTracks {
 public:
  /// `timeline` outlives it.
  StreamTracks(Timeline& timeline, std::unique_ptr<tiers::StreamClock> clock, std::string others)
      : timeline_(timeline), clock_(std::move(clock)), others_(std::move(others)) {}
  ~StreamTracks() { write(); }
  StreamTracks(const StreamTracks&) = delete;
  StreamTracks& operator=(const StreamTracks&) = delete;

  void name(StreamHandle stream, std::string track);
  /// What is enqueued on the stream from here to end() with the same name belongs together. It may begin again before
  /// that.
  void begin(StreamHandle stream, std::string_view name);
  /// Ends what began last under this name, on this stream, or else on another one. Writes what the stream has passed.
  void end(StreamHandle stream, std::string_view name, ByteCount bytes = {});
  /// Writes what all streams have passed.
  void write();
  /// The same; and what has begun, as far as streams have passed it, and not ended is left out.
  void end_round();

 private:
  struct Point {
    tiers::StreamClock::Mark mark = 0;
    bool ends = false;
    std::string name;
    ByteCount bytes;
  };
  struct Begun {
    std::string name;
    TimePoint time{};
  };
  struct Track {
    std::string name;
    std::deque<Point> points;  // in the order of the stream
    std::vector<Begun> begun;  // passed, and not ended
  };
  // With the lock held.
  [[nodiscard]] Track& track_of(StreamHandle stream);
  void mark(StreamHandle stream, Track& track, Point point);
  [[nodiscard]] bool is_over();
  void write(Track& track);
  void pass(Track& track, const Point& point, TimePoint time);
  bool end(Track& of, const Track& track, const Point& point, TimePoint time);

  Timeline& timeline_;
  std::mutex mutex_;  // taken before the timeline's
  bool has_failed_ = false;
  const std::unique_ptr<tiers::StreamClock> clock_;
  const std::string others_;
  std::map<void*, Track> tracks_;  // by the stream's native handle
};

}  // namespace penstock::swap
