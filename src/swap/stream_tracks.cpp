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

void StreamTracks::mark(StreamHandle stream, Track& track, Point point) {
  if (!clock_->status()) return;
  point.mark = clock_->mark(stream);
  track.points.push_back(std::move(point));
}

void StreamTracks::write() {
  const std::lock_guard lock(mutex_);
  for (auto& [stream, track] : tracks_) write(track);
}

void StreamTracks::write(Track& track) {
  for (; !track.points.empty(); track.points.pop_front()) {
    const Point& point = track.points.front();
    const auto time = clock_->passed(point.mark);
    if (!time || !clock_->status()) return;
    pass(track, point, *time);
    clock_->release(point.mark);
  }
}

void StreamTracks::pass(Track& track, const Point& point, TimePoint time) {
  if (!point.ends) {
    track.begun.push_back({point.name, time});
    return;
  }
  const auto last = std::find_if(track.begun.rbegin(), track.begun.rend(),
                                 [&](const Begun& begun) { return begun.name == point.name; });
  if (last == track.begun.rend()) return;
  timeline_.add(track.name, point.name, last->time, time, point.bytes);
  track.begun.erase(std::next(last).base());
}

}  // namespace penstock::swap
