#pragma once

#include <penstock/tiers/device/device.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace penstock::test {

/// How often the calls of a device were made.
struct DeviceCalls {
  struct Counts {
    std::uint64_t allocations = 0, streams = 0, events = 0;  ///< created
    std::uint64_t queries = 0, synchronizations = 0;         ///< of streams and events
    std::uint64_t copies = 0;
  };
  [[nodiscard]] Counts counts() const {
    return {allocations, streams, events, queries, synchronizations, copies};
  }

  std::atomic<std::uint64_t> allocations{0}, streams{0}, events{0};
  std::atomic<std::uint64_t> queries{0}, synchronizations{0}, copies{0};
};

/// Counts the calls of another device, and of its streams and events.
class CountingDevice : public tiers::Device {
 public:
  explicit CountingDevice(std::unique_ptr<tiers::Device> counted) : device_(std::move(counted)) {}

  [[nodiscard]] const DeviceCalls& calls() const { return *calls_; }

  [[nodiscard]] std::string name() const override { return device_->name(); }
  [[nodiscard]] tiers::DeviceMemory memory() const override { return device_->memory(); }
  [[nodiscard]] std::optional<int> cuda_ordinal() const override { return device_->cuda_ordinal(); }
  [[nodiscard]] Result<DeviceSpan> allocate(ByteCount size) override {
    ++calls_->allocations;
    return device_->allocate(size);
  }
  void release(DeviceSpan span) noexcept override { device_->release(span); }
  [[nodiscard]] ByteCount free_memory() const override { return device_->free_memory(); }
  [[nodiscard]] Result<std::unique_ptr<tiers::Stream>> create_stream() override {
    ++calls_->streams;
    PENSTOCK_TRY_ASSIGN(auto stream, device_->create_stream());
    return std::make_unique<CountingStream>(calls_, std::move(stream));
  }
  [[nodiscard]] Result<std::unique_ptr<tiers::Event>> create_event() override {
    ++calls_->events;
    PENSTOCK_TRY_ASSIGN(auto event, device_->create_event());
    return std::make_unique<CountingEvent>(calls_, std::move(event));
  }
  [[nodiscard]] Result<std::unique_ptr<tiers::StreamClock>> create_clock() override {
    return device_->create_clock();
  }
  [[nodiscard]] bool owns_stream(const tiers::Stream& stream) const override {
    const auto* const counting = dynamic_cast<const CountingStream*>(&stream);
    return counting != nullptr && device_->owns_stream(counting->counted());
  }
  Result<void> access_peer(const tiers::Device& other) override { return device_->access_peer(other); }
  Result<void> copy_to_device(StreamHandle stream, ConstHostSpan from, DeviceSpan to) override {
    ++calls_->copies;
    return device_->copy_to_device(stream, from, to);
  }
  Result<void> copy_to_host(StreamHandle stream, DeviceSpan from, HostSpan to) override {
    ++calls_->copies;
    return device_->copy_to_host(stream, from, to);
  }
  Result<void> copy_on_device(StreamHandle stream, DeviceSpan from, DeviceSpan to) override {
    ++calls_->copies;
    return device_->copy_on_device(stream, from, to);
  }
  Result<void> fill_zero(StreamHandle stream, DeviceSpan span) override {
    return device_->fill_zero(stream, span);
  }
  Result<void> pin(HostSpan memory) override { return device_->pin(memory); }
  void unpin(HostSpan memory) noexcept override { device_->unpin(memory); }

 private:
  using Calls = std::shared_ptr<DeviceCalls>;

  class CountingEvent final : public tiers::Event {
   public:
    CountingEvent(Calls calls, std::unique_ptr<tiers::Event> event)
        : calls_(std::move(calls)), event_(std::move(event)) {}
    [[nodiscard]] Result<bool> query() const override {
      ++calls_->queries;
      return event_->query();
    }
    [[nodiscard]] tiers::Event& counted() const { return *event_; }

   private:
    const Calls calls_;
    const std::unique_ptr<tiers::Event> event_;
  };

  class CountingStream final : public tiers::Stream {
   public:
    CountingStream(Calls calls, std::unique_ptr<tiers::Stream> stream)
        : calls_(std::move(calls)), stream_(std::move(stream)) {}
    [[nodiscard]] const tiers::Stream& counted() const { return *stream_; }
    [[nodiscard]] StreamHandle handle() override { return stream_->handle(); }
    Result<void> record(tiers::Event& event) override {
      return stream_->record(dynamic_cast<CountingEvent&>(event).counted());
    }
    Result<void> wait(const tiers::Event& event) override {
      return stream_->wait(dynamic_cast<const CountingEvent&>(event).counted());
    }
    Result<void> synchronize() override {
      ++calls_->synchronizations;
      return stream_->synchronize();
    }

   private:
    const Calls calls_;
    const std::unique_ptr<tiers::Stream> stream_;
  };

  const Calls calls_ = std::make_shared<DeviceCalls>();
  const std::unique_ptr<tiers::Device> device_;
};

}  // namespace penstock::test
