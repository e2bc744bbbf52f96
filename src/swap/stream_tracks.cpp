#include "swap/stream_tracks.hpp"

#include <algorithm>
#include <utility>

namespace penstock::swap {

StreamTracks::Track& StreamTracks::track_of(StreamHandle stream) {
  const auto [found, is_new] = tracks_.try_emplace(stream.native());
  if (is_new) found->second.name = others_;
  return found->second;
}

void StreamTracks::name(StreamHandle stream, std::string track) {
  const std::lock_guard lock(mutex_);
  track_of(stream).name = std::move(track);
}

void StreamTracks::begin(StreamHandle stream, std::string_view name) {
  const std::lock_guard lock(mutex_);
  mark(stream, track_of(stream), {.name = std::string(name)});
}

void StreamTracks::end(StreamHandle stream, std::string_view name, ByteCount bytes) {
  const std::lock_guard lock(mutex_);
  Track& track = track_of(stream);
  mark(stream, track, {.ends = true, .name = std::string(name), .bytes = bytes});
  write(track);
}

/// Whether the clock has failed, or the timeline has ended.
bool StreamTracks::is_over() {
  if (timeline_.has_ended()) return true;
  if (clock_->status()) return false;
  if (!std::exchange(has_failed_, true))
    timeline_.add_message("it lacks what streams do from here on, because their clock has failed: " +
                          clock_->status().error().message());
  return true;
}

void StreamTracks::mark(StreamHandle stream, Track& track, Point point) {
  if (is_over()) return;
  point.mark = clock_->mark(stream);
  track.points.push_back(std::move(point));
}

void StreamTracks::write() {
  const std::lock_guard lock(mutex_);
  for (auto& [stream, track] : tracks_) write(track);
}

void StreamTracks::end_round() {
  const std::lock_guard lock(mutex_);
  for (auto& [stream, track] : tracks_) write(track);
  for (auto& [stream, track] : tracks_) track.begun.clear();
}

void StreamTracks::write(Track& track) {
  for (; !track.points.empty(); track.points.pop_front()) {
    const Point& point = track.points.front();
    const auto time = clock_->passed(point.mark);
    if (!time || is_over()) return;
    pass(track, point, *time);
    clock_->release(point.mark);
  }
}

void StreamTracks::pass(Track& track, const Point& point, TimePoint time) {
  if (!point.ends) {
    track.begun.push_back({point.name, time});
    return;
  }
  if (end(track, track, point, time)) return;
  for (auto& [stream, other] : tracks_)
    if (end(other, track, point, time)) return;
}

/// In the row of `track` what has begun in that of `of`.
bool StreamTracks::end(Track& of, const Track& track, const Point& point, TimePoint time) {
  const auto last = std::find_if(of.begun.rbegin(), of.begun.rend(),
                                 [&](const Begun& begun) { return begun.name == point.name; });
  if (last == of.begun.rend()) return false;
  timeline_.add(track.name, point.name, last->time, std::max(time, last->time), point.bytes);
  of.begun.erase(std::next(last).base());
  return true;
}

}  // namespace penstock::swap
