#include "zero/engine/timed_accelerator.hpp"

#include <utility>

namespace penstock::zero {

namespace {

class TrackObserver final : public StreamObserver {
 public:
  explicit TrackObserver(std::shared_ptr<swap::StreamTracks> tracks) : tracks_(std::move(tracks)) {}

  void begin(StreamHandle stream, StreamOperation operation) override {
    tracks_->begin(stream, to_string(operation));
  }
  void end(StreamHandle stream, StreamOperation operation, ByteCount bytes) override {
    tracks_->end(stream, to_string(operation), bytes);
  }

 private:
  const std::shared_ptr<swap::StreamTracks> tracks_;
};

/// Refers to what outlives it.
template <class Part>
std::shared_ptr<Part> borrowed(Part* part) {
  return std::shared_ptr<Part>(std::shared_ptr<void>(), part);
}

}  // namespace

TimedAccelerator::TimedAccelerator(swap::Timeline* timeline, tiers::Device& device, Compute& compute,
                                   cpu_adam::DeviceAdam* adam)
    : device_(borrowed(&device)), compute_(borrowed(&compute)), adam_(borrowed(adam)) {
  if (timeline == nullptr) return;
  if (const auto timed = time(*timeline); !timed)
    note_ = "the timeline lacks the streams of the device: " + timed.error().message();
}

Result<void> TimedAccelerator::time(swap::Timeline& timeline) {
  PENSTOCK_TRY_ASSIGN(auto clock, device_->create_clock());
  if (clock == nullptr) return Error::invalid_argument("Device::create_clock").reason("it returned no clock");
  tracks_ = std::make_shared<swap::StreamTracks>(timeline, std::move(clock), "stream of the trainer");
  const auto observer = std::make_shared<TrackObserver>(tracks_);
  PENSTOCK_TRY_ASSIGN(device_, observe(device_, observer));
  PENSTOCK_TRY_ASSIGN(compute_, observe(compute_, observer));
  if (adam_ != nullptr) {
    PENSTOCK_TRY_ASSIGN(adam_, observe(adam_, observer));
  }
  return ok();
}

}  // namespace penstock::zero
