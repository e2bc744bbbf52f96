#include "gpt/timed_device.hpp"

#include <utility>

namespace gpt {

using namespace penstock;  // NOLINT: an example reads better so

namespace {

class TimedDevice final : public tiers::Device {
 public:
  TimedDevice(std::unique_ptr<tiers::Device> device, std::shared_ptr<Timeline> timeline)
      : device_(std::move(device)), timeline_(std::move(timeline)) {}

  std::string name() const override { return device_->name(); }
  tiers::DeviceMemory memory() const override { return device_->memory(); }
  Result<DeviceSpan> allocate(ByteCount size) override { return device_->allocate(size); }
  void release(DeviceSpan span) noexcept override { device_->release(span); }
  ByteCount free_memory() const override { return device_->free_memory(); }
  Result<std::unique_ptr<tiers::Stream>> create_stream() override { return device_->create_stream(); }
  Result<std::unique_ptr<tiers::Event>> create_event() override { return device_->create_event(); }

  Result<void> copy_to_device(StreamHandle stream, ConstHostSpan from, DeviceSpan to) override {
    return timed(stream, {.activity = Activity::copy_to_device, .bytes = to.size()},
                 [&] { return device_->copy_to_device(stream, from, to); });
  }
  Result<void> copy_to_host(StreamHandle stream, DeviceSpan from, HostSpan to) override {
    return timed(stream, {.activity = Activity::copy_to_host, .bytes = from.size()},
                 [&] { return device_->copy_to_host(stream, from, to); });
  }
  Result<void> copy_on_device(StreamHandle stream, DeviceSpan from, DeviceSpan to) override {
    return timed(stream, {.activity = Activity::copy_on_device, .bytes = to.size()},
                 [&] { return device_->copy_on_device(stream, from, to); });
  }
  Result<void> fill_zero(StreamHandle stream, DeviceSpan span) override {
    return device_->fill_zero(stream, span);
  }

  Result<void> pin(HostSpan memory) override { return device_->pin(memory); }
  void unpin(HostSpan memory) noexcept override { device_->unpin(memory); }

 private:
  template <class Copy>
  Result<void> timed(StreamHandle stream, const Doing& doing, const Copy& copy) {
    timeline_->begin(stream);
    auto done = copy();
    timeline_->end(stream, doing);
    return done;
  }

  const std::unique_ptr<tiers::Device> device_;
  const std::shared_ptr<Timeline> timeline_;
};

class TimedEngine final : public tiers::IoEngine {
 public:
  TimedEngine(std::unique_ptr<tiers::IoEngine> engine, std::shared_ptr<Timeline> timeline,
              std::uint32_t track)
      : engine_(std::move(engine)), timeline_(std::move(timeline)), track_(track) {}

  std::size_t submit(std::span<const tiers::IoRequest> requests) noexcept override {
    if (in_flight_ == 0) began_ = Clock::steady().now();
    const std::size_t accepted = engine_->submit(requests);
    in_flight_ += accepted;
    for (const tiers::IoRequest& request : requests.first(accepted)) bytes_ += request.buffer.size();
    return accepted;
  }
  std::size_t reap(std::span<tiers::IoCompletion> completions, TimePoint deadline) noexcept override {
    const std::size_t completed = engine_->reap(completions, deadline);
    in_flight_ -= completed;
    if (completed > 0 && in_flight_ == 0) {
      timeline_->add({.track = track_,
                      .did = {.activity = Activity::disk, .bytes = std::exchange(bytes_, {})},
                      .begin = began_,
                      .end = Clock::steady().now()});
    }
    return completed;
  }
  void wake() noexcept override { engine_->wake(); }
  void attach(tiers::FileHandle file, HostSpan buffers) noexcept override { engine_->attach(file, buffers); }
  bool close(TimePoint deadline) noexcept override { return engine_->close(deadline); }
  tiers::IoLimits limits() const noexcept override { return engine_->limits(); }
  std::uint32_t in_flight() const noexcept override { return engine_->in_flight(); }
  const char* name() const noexcept override { return engine_->name(); }
  std::string notes() const override { return engine_->notes(); }
  std::string failure() const override { return engine_->failure(); }

 private:
  const std::unique_ptr<tiers::IoEngine> engine_;
  const std::shared_ptr<Timeline> timeline_;
  const std::uint32_t track_;
  std::size_t in_flight_ = 0;
  TimePoint began_{};
  ByteCount bytes_;
};

}  // namespace

std::unique_ptr<tiers::Device> time_copies(std::unique_ptr<tiers::Device> device,
                                           std::shared_ptr<Timeline> timeline) {
  return std::make_unique<TimedDevice>(std::move(device), std::move(timeline));
}

std::unique_ptr<tiers::IoEngine> time_requests(std::unique_ptr<tiers::IoEngine> engine,
                                               std::shared_ptr<Timeline> timeline, std::uint32_t track) {
  return std::make_unique<TimedEngine>(std::move(engine), std::move(timeline), track);
}

}  // namespace gpt
