#pragma once

#include <penstock/base/units.hpp>
#include <penstock/tiers/device/stream_clock.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace gpt {

enum class Activity : std::uint8_t {
  forward,
  backward,
  wait_for_parameters,
  wait_for_gradients,  ///< for memory for them
  wait_for_checkpoint,
  wait_for_step,  ///< for the trainer between two micro-batches, and for the engine's step
  copy_to_device,
  copy_to_host,
  copy_on_device,
  cast,  ///< this and the next ones: kernels of the library
  scale,
  accumulate,
  mean,
  square_sums,
  adam,
  disk,
};
constexpr std::size_t activity_count = 16;

struct Doing {
  Activity activity = Activity::forward;
  std::uint32_t unit = 0;       ///< of forward, backward and waits for one
  penstock::ByteCount bytes{};  ///< of copies and disk; of kernels, those that they read and write
};

/// What a track, which is a stream or a disk, did from `begin` to `end`, on Clock::steady().
struct Span {
  std::uint32_t track = 0;
  Doing did;
  penstock::TimePoint begin{}, end{};
};

/// What the streams and disks of one rank do, and when. Safe from any thread; nothing blocks.
class Timeline {
 public:
  explicit Timeline(std::unique_ptr<penstock::tiers::StreamClock> clock) : clock_(std::move(clock)) {}

  /// Names the stream's track, which is otherwise called by its number.
  void name_stream(penstock::StreamHandle stream, std::string name);
  /// What is enqueued on the stream from now on belongs to the span that end() names.
  void begin(penstock::StreamHandle stream);
  /// The stream does this from its last begin() or end() to here.
  void end(penstock::StreamHandle stream, const Doing& did);

  /// A track that is no stream, and a span of it.
  [[nodiscard]] std::uint32_t add_track(std::string name);
  void add(const Span& span);

  /// Removes and returns the spans that have ended, those of a stream in order.
  [[nodiscard]] std::vector<Span> take();
  /// The names of all tracks, by number.
  [[nodiscard]] std::vector<std::string> tracks() const;
  /// The first error of the clock.
  [[nodiscard]] penstock::Result<void> status() const;

 private:
  struct Point {
    penstock::tiers::StreamClock::Mark mark = 0;
    bool ends_span = false;
    Doing did;
  };
  struct Stream {
    std::uint32_t track = 0;
    std::deque<Point> points;
    penstock::TimePoint last{};  // when it passed the point before the first
  };
  Stream& stream(penstock::StreamHandle handle);

  mutable std::mutex mutex_;
  std::unique_ptr<penstock::tiers::StreamClock> clock_;
  std::map<void*, Stream> streams_;  // by their native handles
  std::vector<std::string> tracks_;
  std::vector<Span> ended_;
};

}  // namespace gpt
