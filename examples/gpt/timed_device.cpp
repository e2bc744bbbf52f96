#include "gpt/timed_device.hpp"

#include <optional>
#include <utility>

namespace gpt {

using namespace penstock;  // NOLINT: an example reads better so

namespace {

/// Calls `enqueue`, and makes what it enqueues on the stream a span.
template <class Enqueue>
Result<void> timed(Timeline& timeline, StreamHandle stream, const Doing& doing, const Enqueue& enqueue) {
  timeline.begin(stream);
  auto done = enqueue();
  timeline.end(stream, doing);
  return done;
}

class TimedDevice final : public tiers::Device {
 public:
  TimedDevice(std::unique_ptr<tiers::Device> device, std::shared_ptr<Timeline> timeline)
      : device_(std::move(device)), timeline_(std::move(timeline)) {}

  std::string name() const override { return device_->name(); }
  tiers::DeviceMemory memory() const override { return device_->memory(); }
  std::optional<int> cuda_ordinal() const override { return device_->cuda_ordinal(); }
  Result<DeviceSpan> allocate(ByteCount size) override { return device_->allocate(size); }
  void release(DeviceSpan span) noexcept override { device_->release(span); }
  ByteCount free_memory() const override { return device_->free_memory(); }
  Result<std::unique_ptr<tiers::Stream>> create_stream() override { return device_->create_stream(); }
  Result<std::unique_ptr<tiers::Event>> create_event() override { return device_->create_event(); }
  bool owns_stream(const tiers::Stream& stream) const override { return device_->owns_stream(stream); }
  Result<void> access_peer(const tiers::Device& other) override { return device_->access_peer(other); }

  Result<void> copy_to_device(StreamHandle stream, ConstHostSpan from, DeviceSpan to) override {
    return timed(*timeline_, stream, {.activity = Activity::copy_to_device, .bytes = to.size()},
                 [&] { return device_->copy_to_device(stream, from, to); });
  }
  Result<void> copy_to_host(StreamHandle stream, DeviceSpan from, HostSpan to) override {
    return timed(*timeline_, stream, {.activity = Activity::copy_to_host, .bytes = from.size()},
                 [&] { return device_->copy_to_host(stream, from, to); });
  }
  Result<void> copy_on_device(StreamHandle stream, DeviceSpan from, DeviceSpan to) override {
    return timed(*timeline_, stream, {.activity = Activity::copy_on_device, .bytes = to.size()},
                 [&] { return device_->copy_on_device(stream, from, to); });
  }
  Result<void> fill_zero(StreamHandle stream, DeviceSpan span) override {
    return device_->fill_zero(stream, span);
  }

  Result<void> pin(HostSpan memory) override { return device_->pin(memory); }
  void unpin(HostSpan memory) noexcept override { device_->unpin(memory); }

 private:
  const std::unique_ptr<tiers::Device> device_;
  const std::shared_ptr<Timeline> timeline_;
};

class TimedCompute final : public Compute {
 public:
  TimedCompute(std::unique_ptr<Compute> compute, std::shared_ptr<Timeline> timeline)
      : compute_(std::move(compute)), timeline_(std::move(timeline)) {}

  Result<void> cast(StreamHandle stream, DeviceTensor from, DeviceTensor to) override {
    return timed(*timeline_, stream,
                 {.activity = Activity::cast, .bytes = from.bytes.size() + to.bytes.size()},
                 [&] { return compute_->cast(stream, from, to); });
  }
  Result<void> scale(StreamHandle stream, DeviceTensor x, float factor) override {
    return timed(*timeline_, stream, {.activity = Activity::scale, .bytes = x.bytes.size() * 2},
                 [&] { return compute_->scale(stream, x, factor); });
  }
  Result<void> accumulate(StreamHandle stream, DeviceTensor x, DeviceTensor sum) override {
    return timed(*timeline_, stream,
                 {.activity = Activity::accumulate, .bytes = x.bytes.size() + sum.bytes.size() * 2},
                 [&] { return compute_->accumulate(stream, x, sum); });
  }
  Result<void> mean(StreamHandle stream, std::span<const DeviceTensor> x, DeviceTensor out) override {
    ByteCount bytes = out.bytes.size();
    for (const DeviceTensor& one : x) bytes += one.bytes.size();
    return timed(*timeline_, stream, {.activity = Activity::mean, .bytes = bytes},
                 [&] { return compute_->mean(stream, x, out); });
  }
  Result<void> square_sums(StreamHandle stream, DeviceTensor x, DeviceSpan partials) override {
    return timed(*timeline_, stream, {.activity = Activity::square_sums, .bytes = x.bytes.size()},
                 [&] { return compute_->square_sums(stream, x, partials); });
  }

 private:
  const std::unique_ptr<Compute> compute_;
  const std::shared_ptr<Timeline> timeline_;
};

class TimedAdam final : public cpu_adam::DeviceAdam {
 public:
  TimedAdam(std::unique_ptr<cpu_adam::DeviceAdam> adam, std::shared_ptr<Timeline> timeline)
      : adam_(std::move(adam)), timeline_(std::move(timeline)) {}

  Result<void> step(StreamHandle stream, const cpu_adam::AdamConfig& config, std::uint64_t step,
                    float gradient_factor, const cpu_adam::DeviceAdamTile& tile) override {
    const std::uint64_t parameter_uses = cpu_adam::shares_parameter(tile.format) ? 2 : 1;
    const ByteCount bytes =
        tile.state.size() * 2 + tile.gradient.bytes.size() + tile.parameter.bytes.size() * parameter_uses;
    return timed(*timeline_, stream, {.activity = Activity::adam, .bytes = bytes},
                 [&] { return adam_->step(stream, config, step, gradient_factor, tile); });
  }

 private:
  const std::unique_ptr<cpu_adam::DeviceAdam> adam_;
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
  bool detach() noexcept override { return engine_->detach(); }
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

zero::Accelerator time_operations(zero::Accelerator accelerator, std::shared_ptr<Timeline> timeline) {
  zero::Accelerator timed{
      .device = std::make_unique<TimedDevice>(std::move(accelerator.device), timeline),
      .compute = std::make_unique<TimedCompute>(std::move(accelerator.compute), timeline)};
  if (accelerator.adam) timed.adam = std::make_unique<TimedAdam>(std::move(accelerator.adam), timeline);
  return timed;
}

std::unique_ptr<tiers::IoEngine> time_requests(std::unique_ptr<tiers::IoEngine> engine,
                                               std::shared_ptr<Timeline> timeline, std::uint32_t track) {
  return std::make_unique<TimedEngine>(std::move(engine), std::move(timeline), track);
}

}  // namespace gpt
