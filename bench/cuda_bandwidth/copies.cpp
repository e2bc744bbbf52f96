#include "copies.hpp"
#include "huge_buffer.hpp"

#include "base/cuda/calls.hpp"
#include "tiers/device/cuda_device.hpp"

#include <chrono>
#include <memory>

namespace penstock::bench {

namespace {

enum class Direction { to_device, to_host, both };

const char* name_of(Direction direction) {
  switch (direction) {
    case Direction::to_device: return "to device";
    case Direction::to_host: return "to host";
    case Direction::both: return "both at once";
  }
  return "";
}

/// Copies between registered host memory and the device; each direction has memory and a stream of its own.
class Copier {
 public:
  Copier() = default;
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;
  virtual ~Copier() = default;

  virtual void to_device(ByteCount at, ByteCount size) = 0;
  virtual void to_host(ByteCount at, ByteCount size) = 0;
  virtual void wait() = 0;
};

/// CUDA's own calls.
class BareCopier final : public Copier {
 public:
  explicit BareCopier(ByteCount total) : source_(total), target_(total) {
    check_cuda("cudaSetDevice", cudaSetDevice(0)).value();
    for (const HostSpan host : {source_.span(), target_.span()}) {
      check_cuda("cudaHostRegister", cudaHostRegister(host.data(), total.value(), cudaHostRegisterPortable))
          .value();
    }
    for (void** const device : {&device_target_, &device_source_}) {
      check_cuda("cudaMalloc", cudaMalloc(device, total.value())).value();
    }
    for (cudaStream_t* const stream : {&in_, &out_}) {
      check_cuda("cudaStreamCreate", cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking)).value();
    }
  }
  ~BareCopier() override {
    for (const cudaStream_t stream : {in_, out_}) (void)cudaStreamDestroy(stream);
    for (void* const device : {device_target_, device_source_}) (void)cudaFree(device);
    for (const HostSpan host : {source_.span(), target_.span()}) (void)cudaHostUnregister(host.data());
  }

  void to_device(ByteCount at, ByteCount size) override {
    copy(static_cast<std::byte*>(device_target_) + at.value(), source_.span().data() + at.value(), size,
         cudaMemcpyHostToDevice, in_);
  }
  void to_host(ByteCount at, ByteCount size) override {
    copy(target_.span().data() + at.value(), static_cast<std::byte*>(device_source_) + at.value(), size,
         cudaMemcpyDeviceToHost, out_);
  }
  void wait() override {
    for (const cudaStream_t stream : {in_, out_}) {
      check_cuda("cudaStreamSynchronize", cudaStreamSynchronize(stream)).value();
    }
  }

 private:
  static void copy(void* to, const void* from, ByteCount size, cudaMemcpyKind kind, cudaStream_t stream) {
    check_cuda("cudaMemcpyAsync", cudaMemcpyAsync(to, from, size.value(), kind, stream)).value();
  }

  HugeBuffer source_, target_;
  void *device_target_ = nullptr, *device_source_ = nullptr;
  cudaStream_t in_ = nullptr, out_ = nullptr;
};

/// The library's device.
class DeviceCopier final : public Copier {
 public:
  explicit DeviceCopier(ByteCount total)
      : source_(total),
        target_(total),
        device_(tiers::create_cuda_device(0).value()),
        device_target_(device_->allocate(total).value()),
        device_source_(device_->allocate(total).value()),
        in_(device_->create_stream().value()),
        out_(device_->create_stream().value()) {
    for (const HostSpan host : {source_.span(), target_.span()}) device_->pin(host).value();
  }
  ~DeviceCopier() override {
    in_.reset(), out_.reset();
    for (const DeviceSpan span : {device_target_, device_source_}) device_->release(span);
    for (const HostSpan host : {source_.span(), target_.span()}) device_->unpin(host);
  }

  void to_device(ByteCount at, ByteCount size) override {
    device_->copy_to_device(in_->handle(), source_.span().subspan(at, size), device_target_.subspan(at, size))
        .value();
  }
  void to_host(ByteCount at, ByteCount size) override {
    device_->copy_to_host(out_->handle(), device_source_.subspan(at, size), target_.span().subspan(at, size))
        .value();
  }
  void wait() override {
    in_->synchronize().value();
    out_->synchronize().value();
  }

 private:
  HugeBuffer source_, target_;
  std::unique_ptr<tiers::Device> device_;
  DeviceSpan device_target_, device_source_;
  std::unique_ptr<tiers::Stream> in_, out_;
};

/// GB/s of copies of `size`, one after the other in each direction, until `total` bytes have been copied in each.
double rate_of(Copier& copier, Direction direction, ByteCount size, ByteCount total) {
  const auto start = std::chrono::steady_clock::now();
  for (ByteCount at; at < total; at += size) {
    const ByteCount part = std::min(size, total - at);
    if (direction != Direction::to_host) copier.to_device(at, part);
    if (direction != Direction::to_device) copier.to_host(at, part);
  }
  copier.wait();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const int directions = direction == Direction::both ? 2 : 1;
  return directions * static_cast<double>(total.value()) / seconds / 1e9;
}

}  // namespace

std::vector<CopyRow> measure_copies(const CopyOptions& options) {
  BareCopier bare(options.total);
  DeviceCopier penstock(options.total);
  std::vector<CopyRow> rows;
  for (const Direction direction : {Direction::to_device, Direction::to_host, Direction::both}) {
    for (const ByteCount size : options.sizes) {
      const auto measure = [&](Copier& copier) { return rate_of(copier, direction, size, options.total); };
      measure(bare), measure(penstock);  // not counted
      std::vector<double> of_bare, of_penstock;
      for (int round = 0; round < options.rounds; ++round) {
        // The first contestant alternates, so that drift affects both alike.
        if (round % 2 == 0) of_bare.push_back(measure(bare));
        of_penstock.push_back(measure(penstock));
        if (round % 2 != 0) of_bare.push_back(measure(bare));
      }
      rows.push_back({name_of(direction), size, measure::center(of_bare), measure::center(of_penstock),
                      measure::center(measure::ratios(of_penstock, of_bare))});
    }
  }
  return rows;
}

}  // namespace penstock::bench
