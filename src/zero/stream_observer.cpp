#include <penstock/zero/stream_observer.hpp>

#include <array>
#include <optional>
#include <utility>

namespace penstock::zero {

namespace {

template <class Enqueue>
Result<void> observed(StreamObserver& observer, StreamHandle stream, StreamOperation operation,
                      ByteCount bytes, const Enqueue& enqueue) {
  observer.begin(stream, operation);
  auto outcome = enqueue();
  observer.end(stream, operation, bytes);
  return outcome;
}

class ObservedDevice final : public tiers::Device {
 public:
  ObservedDevice(std::shared_ptr<tiers::Device> device, std::shared_ptr<StreamObserver> observer)
      : device_(std::move(device)), observer_(std::move(observer)) {}

  std::string name() const override { return device_->name(); }
  tiers::DeviceMemory memory() const override { return device_->memory(); }
  std::optional<int> cuda_ordinal() const override { return device_->cuda_ordinal(); }
  Result<DeviceSpan> allocate(ByteCount size) override { return device_->allocate(size); }
  void release(DeviceSpan span) noexcept override { device_->release(span); }
  ByteCount free_memory() const override { return device_->free_memory(); }
  Result<std::unique_ptr<tiers::Stream>> create_stream() override { return device_->create_stream(); }
  Result<std::unique_ptr<tiers::Event>> create_event() override { return device_->create_event(); }
  Result<std::unique_ptr<tiers::StreamClock>> create_clock() override { return device_->create_clock(); }
  bool owns_stream(const tiers::Stream& stream) const override { return device_->owns_stream(stream); }
  Result<void> access_peer(const tiers::Device& other) override { return device_->access_peer(other); }

  Result<void> copy_to_device(StreamHandle stream, ConstHostSpan from, DeviceSpan to) override {
    return observed(*observer_, stream, StreamOperation::copy_to_device, to.size(),
                    [&] { return device_->copy_to_device(stream, from, to); });
  }
  Result<void> copy_to_host(StreamHandle stream, DeviceSpan from, HostSpan to) override {
    return observed(*observer_, stream, StreamOperation::copy_to_host, from.size(),
                    [&] { return device_->copy_to_host(stream, from, to); });
  }
  Result<void> copy_on_device(StreamHandle stream, DeviceSpan from, DeviceSpan to) override {
    return observed(*observer_, stream, StreamOperation::copy_on_device, to.size(),
                    [&] { return device_->copy_on_device(stream, from, to); });
  }
  Result<void> fill_zero(StreamHandle stream, DeviceSpan span) override {
    return observed(*observer_, stream, StreamOperation::fill, span.size(),
                    [&] { return device_->fill_zero(stream, span); });
  }

  Result<void> pin(HostSpan memory) override { return device_->pin(memory); }
  void unpin(HostSpan memory) noexcept override { device_->unpin(memory); }

 private:
  const std::shared_ptr<tiers::Device> device_;
  const std::shared_ptr<StreamObserver> observer_;
};

class ObservedCompute final : public Compute {
 public:
  ObservedCompute(std::shared_ptr<Compute> compute, std::shared_ptr<StreamObserver> observer)
      : compute_(std::move(compute)), observer_(std::move(observer)) {}

  Result<void> cast(StreamHandle stream, DeviceTensor from, DeviceTensor to) override {
    return observed(*observer_, stream, StreamOperation::cast, from.bytes.size() + to.bytes.size(),
                    [&] { return compute_->cast(stream, from, to); });
  }
  Result<void> scale(StreamHandle stream, DeviceTensor x, float factor) override {
    return observed(*observer_, stream, StreamOperation::scale, x.bytes.size() * 2,
                    [&] { return compute_->scale(stream, x, factor); });
  }
  Result<void> accumulate(StreamHandle stream, DeviceTensor x, DeviceTensor sum) override {
    return observed(*observer_, stream, StreamOperation::accumulate, x.bytes.size() + sum.bytes.size() * 2,
                    [&] { return compute_->accumulate(stream, x, sum); });
  }
  Result<void> mean(StreamHandle stream, std::span<const DeviceTensor> x, DeviceTensor out) override {
    ByteCount bytes = out.bytes.size();
    for (const DeviceTensor& one : x) bytes += one.bytes.size();
    return observed(*observer_, stream, StreamOperation::mean, bytes,
                    [&] { return compute_->mean(stream, x, out); });
  }
  Result<void> square_sums(StreamHandle stream, DeviceTensor x, DeviceSpan partials) override {
    return observed(*observer_, stream, StreamOperation::square_sums, x.bytes.size(),
                    [&] { return compute_->square_sums(stream, x, partials); });
  }

 private:
  const std::shared_ptr<Compute> compute_;
  const std::shared_ptr<StreamObserver> observer_;
};

class ObservedAdam final : public cpu_adam::DeviceAdam {
 public:
  ObservedAdam(std::shared_ptr<cpu_adam::DeviceAdam> adam, std::shared_ptr<StreamObserver> observer)
      : adam_(std::move(adam)), observer_(std::move(observer)) {}

  Result<void> step(StreamHandle stream, const cpu_adam::AdamConfig& config, std::uint64_t step,
                    float gradient_factor, const cpu_adam::DeviceAdamTile& tile) override {
    const std::uint64_t parameter_uses = cpu_adam::shares_parameter(tile.format) ? 2 : 1;
    const ByteCount bytes =
        tile.state.size() * 2 + tile.gradient.bytes.size() + tile.parameter.bytes.size() * parameter_uses;
    return observed(*observer_, stream, StreamOperation::update, bytes,
                    [&] { return adam_->step(stream, config, step, gradient_factor, tile); });
  }

 private:
  const std::shared_ptr<cpu_adam::DeviceAdam> adam_;
  const std::shared_ptr<StreamObserver> observer_;
};

template <class Observed, class Base>
Result<std::unique_ptr<Base>> made(const char* name, std::shared_ptr<Base> base,
                                   std::shared_ptr<StreamObserver> observer) {
  if (base == nullptr || observer == nullptr) {
    return Error::invalid_argument("observe")
        .object(base == nullptr ? name : "observer")
        .reason("a required object is missing");
  }
  return std::unique_ptr<Base>(new Observed(std::move(base), std::move(observer)));
}

}  // namespace

std::string_view to_string(StreamOperation operation) {
  constexpr std::array<std::string_view, stream_operation_count> names = {
      "copy to device", "copy to host", "copy on device", "fill",        "cast",
      "scale",          "accumulate",   "mean",           "square sums", "update"};
  const auto number = static_cast<std::size_t>(operation);
  return number < names.size() ? names[number] : "unknown";
}

Result<std::unique_ptr<tiers::Device>> observe(std::shared_ptr<tiers::Device> device,
                                               std::shared_ptr<StreamObserver> observer) {
  return made<ObservedDevice>("device", std::move(device), std::move(observer));
}
Result<std::unique_ptr<Compute>> observe(std::shared_ptr<Compute> compute,
                                         std::shared_ptr<StreamObserver> observer) {
  return made<ObservedCompute>("compute", std::move(compute), std::move(observer));
}
Result<std::unique_ptr<cpu_adam::DeviceAdam>> observe(std::shared_ptr<cpu_adam::DeviceAdam> adam,
                                                      std::shared_ptr<StreamObserver> observer) {
  return made<ObservedAdam>("adam", std::move(adam), std::move(observer));
}

}  // namespace penstock::zero
