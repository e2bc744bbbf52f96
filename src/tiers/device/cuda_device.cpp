#include "tiers/device/cuda_device.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

namespace penstock::tiers {

namespace {

Error cuda_error(const char* operation, cudaError_t code) {
  (void)cudaGetLastError();  // clears the error, which the next call would return again
  const bool memory = code == cudaErrorMemoryAllocation;
  return Error(memory ? ErrorCode::budget_too_small : ErrorCode::io, operation)
      .reason(std::string("CUDA: ") + cudaGetErrorString(code));
}

Result<void> check(const char* operation, cudaError_t code) {
  if (code == cudaSuccess) return ok();
  return cuda_error(operation, code);
}

/// Makes a device current during one call, and restores the previous one.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    (void)cudaGetDevice(&previous_);
    if (previous_ != device) (void)cudaSetDevice(device);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice() { (void)cudaSetDevice(previous_); }

 private:
  int previous_ = 0;
};

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
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}
  ~CudaEvent() override { (void)cudaEventDestroy(event_); }

  Result<bool> query() const override {
    const cudaError_t code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) {
      (void)cudaGetLastError();  // else the thread's next kernel launch would report it
      return false;
    }
    if (code != cudaSuccess) return cuda_error("Event::query", code);
    return true;
  }
  Result<void> synchronize() const override {
    return check("Event::synchronize", cudaEventSynchronize(event_));
  }
  cudaEvent_t native() const { return event_; }

 private:
  cudaEvent_t event_;
};

class CudaStream final : public Stream {
 public:
  explicit CudaStream(cudaStream_t stream) : stream_(stream) {}
  ~CudaStream() override {
    (void)cudaStreamSynchronize(stream_);
    (void)cudaStreamDestroy(stream_);
  }

  StreamHandle handle() override { return StreamHandle::from_native(stream_); }
  Result<void> record(Event& event) override {
    return check("Stream::record", cudaEventRecord(static_cast<CudaEvent&>(event).native(), stream_));
  }
  Result<void> wait(const Event& event) override {
    return check("Stream::wait",
                 cudaStreamWaitEvent(stream_, static_cast<const CudaEvent&>(event).native(), 0));
  }
  Result<void> synchronize() override { return check("Stream::synchronize", cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int device, std::string name) : device_(device), name_(std::move(name)) {}

  std::string name() const override { return name_; }

  Result<DeviceSpan> allocate(ByteCount size) override {
    const CurrentDevice current(device_);
    void* memory = nullptr;
    if (const cudaError_t code = cudaMalloc(&memory, size.value()); code != cudaSuccess) {
      return cuda_error("CudaDevice::allocate", code)
          .wanted(size)
          .got(to_string(free_memory()) + " free")
          .advice("lower the device budget");
    }
    return DeviceSpan(DeviceAddress(reinterpret_cast<std::uintptr_t>(memory)), size);
  }
  void release(DeviceSpan span) noexcept override { (void)cudaFree(pointer(span)); }
  ByteCount free_memory() const override {
    const CurrentDevice current(device_);
    std::size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return ByteCount();
    return ByteCount(free);
  }

  Result<std::unique_ptr<Stream>> create_stream() override {
    const CurrentDevice current(device_);
    cudaStream_t stream = nullptr;
    PENSTOCK_TRY(
        check("CudaDevice::create_stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
    return std::make_unique<CudaStream>(stream);
  }
  Result<std::unique_ptr<Event>> create_event() override {
    const CurrentDevice current(device_);
    cudaEvent_t event = nullptr;
    PENSTOCK_TRY(check("CudaDevice::create_event", cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
    return std::make_unique<CudaEvent>(event);
  }

  Result<void> copy_to_device(StreamHandle stream, ConstHostSpan from, DeviceSpan to) override {
    return copy(stream, pointer(to), to.size(), from.data(), from.size(), cudaMemcpyHostToDevice);
  }
  Result<void> copy_to_host(StreamHandle stream, DeviceSpan from, HostSpan to) override {
    return copy(stream, to.data(), to.size(), pointer(from), from.size(), cudaMemcpyDeviceToHost);
  }
  Result<void> copy_on_device(StreamHandle stream, DeviceSpan from, DeviceSpan to) override {
    return copy(stream, pointer(to), to.size(), pointer(from), from.size(), cudaMemcpyDeviceToDevice);
  }
  Result<void> fill_zero(StreamHandle stream, DeviceSpan span) override {
    if (span.empty()) return ok();
    return check("CudaDevice::fill_zero",
                 cudaMemsetAsync(pointer(span), 0, span.size().value(), native(stream)));
  }

  // Portable: every device of the process can copy from it asynchronously.
  Result<void> pin(HostSpan memory) override {
    const CurrentDevice current(device_);
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
    for (ByteCount at; at < memory.size();) {
      std::byte* const part = memory.data() + at.value();
      (void)cudaHostUnregister(part);
      at += first_slab(part, memory.size() - at);
    }
  }

 private:
  /// CUDA refuses a copy of host memory that is not in one registration.
  static Result<void> copy(StreamHandle stream, void* to, ByteCount to_size, const void* from,
                           ByteCount from_size, cudaMemcpyKind kind) {
    if (to_size != from_size)
      return Error::invalid_argument("CudaDevice::copy").wanted(from_size).got(to_size);
    for (ByteCount at; at < to_size;) {
      auto* const target = static_cast<std::byte*>(to) + at.value();
      const auto* const source = static_cast<const std::byte*>(from) + at.value();
      const ByteCount left = to_size - at;
      const ByteCount part = kind == cudaMemcpyDeviceToDevice ? left
                             : kind == cudaMemcpyHostToDevice ? first_slab(source, left)
                                                              : first_slab(target, left);
      PENSTOCK_TRY(
          check("CudaDevice::copy", cudaMemcpyAsync(target, source, part.value(), kind, native(stream))));
      at += part;
    }
    return ok();
  }

  const int device_;
  const std::string name_;
};

}  // namespace

Result<int> cuda_device_count() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess) return count;
  (void)cudaGetLastError();
  return Error::unsupported("cuda_device_count").reason(cudaGetErrorString(code));
}

Result<std::unique_ptr<Device>> create_cuda_device(int device) {
  PENSTOCK_TRY_ASSIGN(auto count, cuda_device_count());
  if (device < 0 || device >= count) {
    return Error::invalid_argument("create_cuda_device")
        .object("device " + std::to_string(device))
        .wanted("0 to " + std::to_string(count - 1));
  }
  cudaDeviceProp properties{};
  PENSTOCK_TRY(check("create_cuda_device", cudaGetDeviceProperties(&properties, device)));
  return std::make_unique<CudaDevice>(device, properties.name);
}

}  // namespace penstock::tiers
