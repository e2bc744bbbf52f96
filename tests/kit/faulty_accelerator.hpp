#pragma once

#include "kit/counting_device.hpp"

#include <penstock/cpu_adam/device_adam.hpp>
#include <penstock/zero/rank.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace penstock::zero::test {

/// What a FaultyAccelerator does, and did.
struct DeviceFaults {
  /// Called with the stream of each update of a tile, before it.
  std::function<Result<void>(StreamHandle)> before_update;
  std::uint32_t failing_records = 0;  ///< how many of the next ones fail, of all streams
  std::uint32_t records_before = 0;   ///< how many succeed before these
  std::function<void()> on_release;

  /// Puts these faults around a device and its optimizer. Outlives them.
  void add_to(Accelerator& accelerator);
};

class FaultyDevice final : public penstock::test::CountingDevice {
 public:
  FaultyDevice(std::unique_ptr<tiers::Device> device, DeviceFaults& faults)
      : CountingDevice(std::move(device)), faults_(faults) {}

  [[nodiscard]] Result<std::unique_ptr<tiers::Stream>> create_stream() override {
    PENSTOCK_TRY_ASSIGN(auto stream, CountingDevice::create_stream());
    return std::make_unique<Stream>(std::move(stream), faults_);
  }
  [[nodiscard]] bool owns_stream(const tiers::Stream& stream) const override {
    const auto* const faulty = dynamic_cast<const Stream*>(&stream);
    return faulty != nullptr && CountingDevice::owns_stream(faulty->wrapped());
  }
  void release(DeviceSpan span) noexcept override {
    if (faults_.on_release) faults_.on_release();
    CountingDevice::release(span);
  }

 private:
  class Stream final : public tiers::Stream {
   public:
    Stream(std::unique_ptr<tiers::Stream> stream, DeviceFaults& faults)
        : stream_(std::move(stream)), faults_(faults) {}
    [[nodiscard]] const tiers::Stream& wrapped() const { return *stream_; }
    [[nodiscard]] StreamHandle handle() override { return stream_->handle(); }
    Result<void> record(tiers::Event& event) override {
      if (faults_.failing_records == 0) return stream_->record(event);
      if (faults_.records_before > 0) {
        --faults_.records_before;
        return stream_->record(event);
      }
      --faults_.failing_records;
      return Error(ErrorCode::io, "Stream::record").reason("an injected fault");
    }
    Result<void> wait(const tiers::Event& event) override { return stream_->wait(event); }
    Result<void> synchronize() override { return stream_->synchronize(); }

   private:
    const std::unique_ptr<tiers::Stream> stream_;
    DeviceFaults& faults_;
  };

  DeviceFaults& faults_;
};

class FaultyAdam final : public cpu_adam::DeviceAdam {
 public:
  FaultyAdam(std::unique_ptr<cpu_adam::DeviceAdam> adam, DeviceFaults& faults)
      : adam_(std::move(adam)), faults_(faults) {}
  Result<void> step(StreamHandle stream, const cpu_adam::AdamConfig& config, std::uint64_t step,
                    float gradient_factor, const cpu_adam::DeviceAdamTile& tile) override {
    if (faults_.before_update) PENSTOCK_TRY(faults_.before_update(stream));
    return adam_->step(stream, config, step, gradient_factor, tile);
  }

 private:
  const std::unique_ptr<cpu_adam::DeviceAdam> adam_;
  DeviceFaults& faults_;
};

inline void DeviceFaults::add_to(Accelerator& accelerator) {
  accelerator.device = std::make_unique<FaultyDevice>(std::move(accelerator.device), *this);
  accelerator.adam = std::make_unique<FaultyAdam>(std::move(accelerator.adam), *this);
}

}  // namespace penstock::zero::test
