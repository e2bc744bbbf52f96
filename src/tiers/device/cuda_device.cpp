#include "tiers/device/cuda_device.hpp"

#include "base/cuda/calls.hpp"
#include "tiers/device/cuda_staging.hpp"
#include "tiers/device/cuda_stream_clock.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace penstock::tiers {

namespace {

void* pointer(DeviceSpan span) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(span.address()));
}
cudaStream_t native(StreamHandle stream) {
  return static_cast<cudaStream_t>(stream.native());
}

/// The length of the part of `size` bytes at `memory` that is in their first slab. Pinned memory is registered slab by
/// slab, because the registration of hundreds of GiB at once blocks all other CUDA calls. Slabs begin at multiples of
/// their length, so that copies know their edges.
ByteCount first_slab(const void* memory, ByteCount size) {
  constexpr ByteCount slab = 1_GiB;
  return std::min(size, ByteCount(slab.value() - reinterpret_cast<std::uintptr_t>(memory) % slab.value()));
}

class CudaEvent final : public Event {
 public:
  CudaEvent(int device, cudaEvent_t event) : device_(device), event_(event) {}
  ~CudaEvent() override {
    if (use_device("Event::~Event", device_)) ignore_cuda(cudaEventDestroy(event_));
  }

  Result<bool> query() const override {
    PENSTOCK_TRY(use_device("Event::query", device_));
    const cudaError_t code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) {
      ignore_cuda(code);
      return false;
    }
    if (code != cudaSuccess) return cuda_error("Event::query", code);
    return true;
  }
  cudaEvent_t native() const { return event_; }

 private:
  const int device_;
  const cudaEvent_t event_;
};

class CudaStream final : public Stream {
 public:
  /// `owned`: created here, and destroyed with this object.
  CudaStream(int device, cudaStream_t stream, bool owned) : device_(device), stream_(stream), owned_(owned) {}
  ~CudaStream() override {
    if (!owned_ || !use_device("Stream::~Stream", device_)) return;
    ignore_cuda(cudaStreamSynchronize(stream_));
    ignore_cuda(cudaStreamDestroy(stream_));
  }

  [[nodiscard]] int device() const { return device_; }
  StreamHandle handle() override { return StreamHandle::from_native(stream_); }
  Result<void> record(Event& event) override {
    PENSTOCK_TRY(use_device("Stream::record", device_));
    return check_cuda("Stream::record", cudaEventRecord(static_cast<CudaEvent&>(event).native(), stream_));
  }
  Result<void> wait(const Event& event) override {
    PENSTOCK_TRY(use_device("Stream::wait", device_));
    return check_cuda("Stream::wait",
                      cudaStreamWaitEvent(stream_, static_cast<const CudaEvent&>(event).native(), 0));
  }
  Result<void> synchronize() override {
    PENSTOCK_TRY(use_device("Stream::synchronize", device_));
    return check_cuda("Stream::synchronize", cudaStreamSynchronize(stream_));
  }

 private:
  const int device_;
  const cudaStream_t stream_;
  const bool owned_;
};

Result<std::unique_ptr<CudaEvent>> create_event_of(int device) {
  constexpr const char* operation = "CudaDevice::create_event";
  PENSTOCK_TRY(use_device(operation, device));
  cudaEvent_t event = nullptr;
  PENSTOCK_TRY(check_cuda(operation, cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
  return std::make_unique<CudaEvent>(device, event);
}

class CudaDevice final : public Device {
 public:
  CudaDevice(int device, std::string name) : device_(device), name_(std::move(name)), staging_(device) {}

  std::string name() const override { return name_; }
  std::optional<int> cuda_ordinal() const override { return device_; }

  Result<DeviceSpan> allocate(ByteCount size) override {
    PENSTOCK_TRY(use_device("CudaDevice::allocate", device_));
    void* memory = nullptr;
    if (const cudaError_t code = cudaMalloc(&memory, size.value()); code != cudaSuccess) {
      return cuda_error("CudaDevice::allocate", code).wanted(size).got(to_string(free_memory()) + " free");
    }
    return DeviceSpan(DeviceAddress(reinterpret_cast<std::uintptr_t>(memory)), size);
  }
  void release(DeviceSpan span) noexcept override {
    if (use_device("CudaDevice::release", device_)) ignore_cuda(cudaFree(pointer(span)));
  }
  ByteCount free_memory() const override {
    std::size_t free = 0, total = 0;
    if (!use_device("CudaDevice::free_memory", device_)) return ByteCount();
    const cudaError_t code = cudaMemGetInfo(&free, &total);
    ignore_cuda(code);
    return code == cudaSuccess ? ByteCount(free) : ByteCount();
  }

  Result<std::unique_ptr<Stream>> create_stream() override {
    constexpr const char* operation = "CudaDevice::create_stream";
    PENSTOCK_TRY(use_device(operation, device_));
    cudaStream_t stream = nullptr;
    PENSTOCK_TRY(check_cuda(operation, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
    return std::make_unique<CudaStream>(device_, stream, /*owned=*/true);
  }
  Result<std::unique_ptr<Event>> create_event() override {
    PENSTOCK_TRY_ASSIGN(auto event, create_event_of(device_));
    return event;
  }
  Result<std::unique_ptr<StreamClock>> create_clock() override { return make_cuda_stream_clock(device_); }
  bool owns_stream(const Stream& stream) const override {
    const auto* const cuda = dynamic_cast<const CudaStream*>(&stream);
    return cuda != nullptr && cuda->device() == device_;
  }
  Result<void> access_peer(const Device& other) override {
    const std::optional<int> peer = other.cuda_ordinal();
    if (peer == device_) return ok();
    int possible = 0;
    if (peer) {
      PENSTOCK_TRY(check_cuda("CudaDevice::access_peer", cudaDeviceCanAccessPeer(&possible, device_, *peer)));
    }
    if (possible == 0) return no_access(other);
    PENSTOCK_TRY(use_device("CudaDevice::access_peer", device_));
    const cudaError_t code = cudaDeviceEnablePeerAccess(*peer, 0);
    if (code != cudaSuccess && code != cudaErrorPeerAccessAlreadyEnabled) {
      return cuda_error("CudaDevice::access_peer", code)
          .object(described(*this))
          .wanted("access to " + described(other));
    }
    ignore_cuda(code);
    return ok();
  }

  Result<void> copy_to_device(StreamHandle stream, ConstHostSpan from, DeviceSpan to) override {
    PENSTOCK_TRY_ASSIGN(const bool staged, is_staged(from.data(), from.size()));
    if (staged && from.size() == to.size()) {
      return staging_.to_device(native(stream), from.data(), static_cast<std::byte*>(pointer(to)), to.size());
    }
    return copy(stream, pointer(to), to.size(), from.data(), from.size(), cudaMemcpyHostToDevice);
  }
  Result<void> copy_to_host(StreamHandle stream, DeviceSpan from, HostSpan to) override {
    PENSTOCK_TRY_ASSIGN(const bool staged, is_staged(to.data(), to.size()));
    if (staged && from.size() == to.size()) {
      return staging_.to_host(native(stream), static_cast<const std::byte*>(pointer(from)), to.data(),
                              to.size());
    }
    return copy(stream, to.data(), to.size(), pointer(from), from.size(), cudaMemcpyDeviceToHost);
  }
  Result<void> copy_on_device(StreamHandle stream, DeviceSpan from, DeviceSpan to) override {
    return copy(stream, pointer(to), to.size(), pointer(from), from.size(), cudaMemcpyDeviceToDevice);
  }
  Result<void> fill_zero(StreamHandle stream, DeviceSpan span) override {
    if (span.empty()) return ok();
    PENSTOCK_TRY(use_device("CudaDevice::fill_zero", device_));
    return check_cuda("CudaDevice::fill_zero",
                      cudaMemsetAsync(pointer(span), 0, span.size().value(), native(stream)));
  }

  // Portable: every device of the process can copy from it asynchronously.
  Result<void> pin(HostSpan memory) override {
    PENSTOCK_TRY(use_device("CudaDevice::pin", device_));
    for (ByteCount at; at < memory.size();) {
      std::byte* const part = memory.data() + at.value();
      const ByteCount size = first_slab(part, memory.size() - at);
      if (const cudaError_t code = cudaHostRegister(part, size.value(), cudaHostRegisterPortable);
          code != cudaSuccess) {
        unpin(memory.subspan(ByteCount(), at));
        return cuda_error("CudaDevice::pin", code).wanted(memory.size());
      }
      at += size;
    }
    return ok();
  }
  void unpin(HostSpan memory) noexcept override {
    if (!use_device("CudaDevice::unpin", device_)) return;
    for (ByteCount at; at < memory.size();) {
      std::byte* const part = memory.data() + at.value();
      ignore_cuda(cudaHostUnregister(part));
      at += first_slab(part, memory.size() - at);
    }
  }

 private:
  /// Devices of a machine often have the same name.
  [[nodiscard]] static std::string described(const Device& device) {
    const std::optional<int> ordinal = device.cuda_ordinal();
    return ordinal ? "CUDA device " + std::to_string(*ordinal) + " (" + device.name() + ")" : device.name();
  }
  [[nodiscard]] Error no_access(const Device& other) const {
    return Error(ErrorCode::unsupported, "CudaDevice::access_peer")
        .reason("it cannot access the memory of another device")
        .object(described(*this))
        .wanted("access to " + described(other))
        .advice(
            "run a process for each rank, with NCCL, or use GPUs between which peer-to-peer access works, by "
            "NVLink or PCIe (nvidia-smi topo -p2p r)");
  }

  [[nodiscard]] Result<bool> is_staged(const std::byte* host, ByteCount size) const {
    if (host == nullptr || size.is_zero()) return false;
    PENSTOCK_TRY(use_device("CudaDevice::copy", device_));
    return CudaStaging::is_pageable(host);
  }

  /// CUDA refuses copies of host memory that leave a registration, and may refuse those across two of them.
  Result<void> copy(StreamHandle stream, void* to, ByteCount to_size, const void* from, ByteCount from_size,
                    cudaMemcpyKind kind) {
    if (to_size != from_size)
      return Error::invalid_argument("CudaDevice::copy").wanted(from_size).got(to_size);
    PENSTOCK_TRY(use_device("CudaDevice::copy", device_));
    for (ByteCount at; at < to_size;) {
      auto* const target = static_cast<std::byte*>(to) + at.value();
      const auto* const source = static_cast<const std::byte*>(from) + at.value();
      const ByteCount left = to_size - at;
      const ByteCount part = kind == cudaMemcpyDeviceToDevice ? left
                             : kind == cudaMemcpyHostToDevice ? first_slab(source, left)
                                                              : first_slab(target, left);
      PENSTOCK_TRY(check_cuda("CudaDevice::copy",
                              cudaMemcpyAsync(target, source, part.value(), kind, native(stream))));
      at += part;
    }
    return ok();
  }

  const int device_;
  const std::string name_;
  CudaStaging staging_;
};

}  // namespace

Result<int> cuda_device_count() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess) return count;
  return cuda_error("cuda_device_count", code);
}

namespace {
Result<void> check_device(const char* operation, int device) {
  PENSTOCK_TRY_ASSIGN(auto count, cuda_device_count());
  if (device >= 0 && device < count) return ok();
  return Error::invalid_argument(operation)
      .object("device " + std::to_string(device))
      .wanted("0 to " + std::to_string(count - 1))
      .advice(cuda_failure(cudaErrorInvalidDevice).advice);
}
}  // namespace

Result<std::unique_ptr<Device>> create_cuda_device(int device) {
  PENSTOCK_TRY(check_device("create_cuda_device", device));
  cudaDeviceProp properties{};
  PENSTOCK_TRY(check_cuda("create_cuda_device", cudaGetDeviceProperties(&properties, device)));
  return std::make_unique<CudaDevice>(device, properties.name);
}

Result<std::unique_ptr<Stream>> wrap_cuda_stream(int device, void* stream) {
  constexpr const char* operation = "wrap_cuda_stream";
  PENSTOCK_TRY(check_device(operation, device));
  auto wrapped = std::make_unique<CudaStream>(device, static_cast<cudaStream_t>(stream), /*owned=*/false);
  // A stream records only events of its own device.
  PENSTOCK_TRY_ASSIGN(const auto event, create_event_of(device));
  if (auto recorded = wrapped->record(*event); !recorded) {
    return std::move(recorded).error().object("stream").wanted("one of device " + std::to_string(device));
  }
  return wrapped;
}

}  // namespace penstock::tiers
