#include "gpt/timeline.hpp"

#include <utility>

namespace gpt {

using penstock::StreamHandle;

Timeline::Stream& Timeline::stream(StreamHandle handle) {
  const auto [found, added] = streams_.try_emplace(handle.native());
  if (added) {
    found->second.track = static_cast<std::uint32_t>(tracks_.size());
    tracks_.push_back("stream " + std::to_string(streams_.size()));
  }
  return found->second;
}

void Timeline::name_stream(StreamHandle handle, std::string name) {
  const std::lock_guard lock(mutex_);
  tracks_[stream(handle).track] = std::move(name);
}

void Timeline::begin(StreamHandle handle) {
  const std::lock_guard lock(mutex_);
  stream(handle).points.push_back({.mark = clock_->mark(handle)});
}

void Timeline::end(StreamHandle handle, const Doing& did) {
  const std::lock_guard lock(mutex_);
  stream(handle).points.push_back({.mark = clock_->mark(handle), .ends_span = true, .did = did});
}

std::uint32_t Timeline::add_track(std::string name) {
  const std::lock_guard lock(mutex_);
  tracks_.push_back(std::move(name));
  return static_cast<std::uint32_t>(tracks_.size() - 1);
}

void Timeline::add(const Span& span) {
  const std::lock_guard lock(mutex_);
  ended_.push_back(span);
}

std::vector<Span> Timeline::take() {
  const std::lock_guard lock(mutex_);
  std::vector<Span> result = std::exchange(ended_, {});
  for (auto& [handle, stream] : streams_) {
    for (; !stream.points.empty(); stream.points.pop_front()) {
      const Point& point = stream.points.front();
      const auto time = clock_->passed(point.mark);
      if (!time) break;
      if (point.ends_span) {
        result.push_back({.track = stream.track, .did = point.did, .begin = stream.last, .end = *time});
      }
      stream.last = *time;
      clock_->release(point.mark);
    }
  }
  return result;
}

std::vector<std::string> Timeline::tracks() const {
  const std::lock_guard lock(mutex_);
  return tracks_;
}

penstock::Result<void> Timeline::status() const {
  const std::lock_guard lock(mutex_);
  return clock_->status();
}

}  // namespace gpt
