#pragma once

#include "swap/stream_tracks.hpp"

#include <penstock/zero/stream_observer.hpp>

#include <memory>
#include <string>

namespace penstock::zero {

/// An engine's accelerator. With a timeline, what its streams do is in tracks of theirs.
class TimedAccelerator {
 public:
  /// The accelerator, and the timeline unless it is null, outlive it. `adam` may be null.
  TimedAccelerator(swap::Timeline* timeline, tiers::Device& device, Compute& compute,
                   cpu_adam::DeviceAdam* adam);

  [[nodiscard]] tiers::Device& device() const { return *device_; }
  [[nodiscard]] Compute& compute() const { return *compute_; }
  [[nodiscard]] cpu_adam::DeviceAdam* adam() const { return adam_.get(); }
  /// Null, if nothing is written.
  [[nodiscard]] swap::StreamTracks* tracks() const { return tracks_.get(); }
  /// Why the timeline lacks the streams, or empty.
  [[nodiscard]] const std::string& note() const { return note_; }

 private:
  [[nodiscard]] Result<void> time(swap::Timeline& timeline);

  std::shared_ptr<swap::StreamTracks> tracks_;
  std::shared_ptr<tiers::Device> device_;
  std::shared_ptr<Compute> compute_;
  std::shared_ptr<cpu_adam::DeviceAdam> adam_;
  std::string note_;
};

}  // namespace penstock::zero
