#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/stream.hpp>
#include <penstock/tiers/device/stream_clock.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace penstock::tiers {

class Event;

/// A queue of device operations that run in order. One thread at a time enqueues. Only events order operations of
/// different streams. Destruction waits for the enqueued operations. The device outlives it.
class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  [[nodiscard]] virtual StreamHandle handle() = 0;
  /// `event` completes once all operations enqueued so far have run. An event may be recorded many times.
  virtual Result<void> record(Event& event) = 0;
  /// Operations enqueued from now on run after the last record of `event`. No wait if it was never recorded.
  virtual Result<void> wait(const Event& event) = 0;
  /// Blocks until all enqueued operations have run.
  virtual Result<void> synchronize() = 0;
};

/// A point in a stream. Any thread may call query().
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  virtual ~Event() = default;

  /// True once the stream has passed the last record, or if there is none. Does not block.
  [[nodiscard]] virtual Result<bool> query() const = 0;
};

/// Where a device's memory is.
enum class DeviceMemory : std::uint8_t {
  separate,  ///< host code cannot access it
  host,      ///< it is host memory: a DeviceSpan may name any host address, and host code may access it
};

/// Memory, streams, events and copies of one accelerator. Implementations: CUDA devices, and HostDevice in host memory.
/// An embedder may implement its own.
///
///     PENSTOCK_TRY_ASSIGN(const DeviceSpan buffer, device.allocate(size));
///     PENSTOCK_TRY_ASSIGN(const auto stream, device.create_stream());
///     PENSTOCK_TRY(device.copy_to_device(stream->handle(), bytes, buffer));
///     PENSTOCK_TRY(stream->synchronize());
///     device.release(buffer);
///
/// Safe from any thread. Only Stream::synchronize() and allocate() block. Members of a device, and of its streams and
/// events, return errors and must not throw.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  /// "host", "host (deferred)", "NVIDIA H200".
  [[nodiscard]] virtual std::string name() const = 0;
  /// Where its memory is. If it is host memory, a rank that is alone uses its tensors where they are, without copies.
  [[nodiscard]] virtual DeviceMemory memory() const { return DeviceMemory::separate; }
  /// The number of a CUDA device in this process; none for other devices. Decorators of a device forward it.
  [[nodiscard]] virtual std::optional<int> cuda_ordinal() const { return std::nullopt; }

  /// Errors: budget_too_small (wanted, free); no_space, where the machine has none.
  [[nodiscard]] virtual Result<DeviceSpan> allocate(ByteCount size) = 0;
  /// Frees a span that allocate() returned. No enqueued operation may use it.
  virtual void release(DeviceSpan span) noexcept = 0;
  [[nodiscard]] virtual ByteCount free_memory() const = 0;

  [[nodiscard]] virtual Result<std::unique_ptr<Stream>> create_stream() = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<Event>> create_event() = 0;
  /// A clock for the streams of the device, for timelines. May wait for the device. Decorators of a device forward it.
  ///
  /// Errors: those of the device; unsupported, of a device that has no clock.
  [[nodiscard]] virtual Result<std::unique_ptr<StreamClock>> create_clock() {
    return Error::unsupported("Device::create_clock").object(name()).reason("the device has no clock");
  }
  /// Whether `stream` is of this device, so that operations and events of the device may be enqueued on it. A device
  /// that cannot tell returns true. Decorators of a device forward it.
  [[nodiscard]] virtual bool owns_stream(const Stream& stream) const {
    (void)stream;
    return true;
  }

  /// From now on, operations on streams of this device may read and write the memory of `other`. Does nothing if they
  /// may already, as on devices in host memory and where both are the same accelerator. Decorators of a device forward
  /// it. InProcessGroup calls it before the first collective, on each rank for every peer.
  ///
  /// Errors: unsupported, naming both devices.
  virtual Result<void> access_peer(const Device& other) {
    (void)other;
    return ok();
  }

  /// Stream-ordered copies; both spans have the same length and stay alive until the stream has passed the copy.
  virtual Result<void> copy_to_device(StreamHandle stream, ConstHostSpan from, DeviceSpan to) = 0;
  virtual Result<void> copy_to_host(StreamHandle stream, DeviceSpan from, HostSpan to) = 0;
  virtual Result<void> copy_on_device(StreamHandle stream, DeviceSpan from, DeviceSpan to) = 0;
  virtual Result<void> fill_zero(StreamHandle stream, DeviceSpan span) = 0;

  /// Registers host memory, so that copies from and to it are asynchronous. Does nothing on devices that need no
  /// registration.
  virtual Result<void> pin(HostSpan memory) = 0;
  virtual void unpin(HostSpan memory) noexcept = 0;
};

}  // namespace penstock::tiers
