#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/stream.hpp>

#include <memory>
#include <string>

namespace penstock::tiers {

class Event;

/// Operations in order. One thread at a time enqueues; operations of different streams are ordered only by
/// events. The device outlives it; destruction waits for what is enqueued.
class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  [[nodiscard]] virtual StreamHandle handle() = 0;
  /// `event` completes once everything enqueued so far has run. An event is recorded again and again.
  virtual Result<void> record(Event& event) = 0;
  /// What is enqueued from now on runs after the last record of `event`. Never recorded: no wait.
  virtual Result<void> wait(const Event& event) = 0;
  /// Blocks until everything enqueued has run.
  virtual Result<void> synchronize() = 0;
};

/// A point in a stream. query and synchronize come from any thread.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  virtual ~Event() = default;

  /// True once the last record has been passed; true if never recorded. Does not block.
  [[nodiscard]] virtual Result<bool> query() const = 0;
  virtual Result<void> synchronize() const = 0;
};

/// Memory, streams, events and copies of one accelerator: CUDA, or host memory playing its part.
///
/// Safe from any thread. Only synchronize and allocate block.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  /// "host", "host (deferred)", "NVIDIA H200".
  [[nodiscard]] virtual std::string name() const = 0;

  /// Errors: budget_too_small, when the device does not have so many bytes left.
  [[nodiscard]] virtual Result<DeviceSpan> allocate(ByteCount size) = 0;
  /// `span` came from allocate() and no stream uses it any more.
  virtual void release(DeviceSpan span) noexcept = 0;
  [[nodiscard]] virtual ByteCount free_memory() const = 0;

  [[nodiscard]] virtual Result<std::unique_ptr<Stream>> create_stream() = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<Event>> create_event() = 0;

  /// Stream-ordered copies of equal lengths; both sides stay alive until the stream has passed them.
  virtual Result<void> copy_to_device(StreamHandle stream, ConstHostSpan from, DeviceSpan to) = 0;
  virtual Result<void> copy_to_host(StreamHandle stream, DeviceSpan from, HostSpan to) = 0;
  virtual Result<void> copy_on_device(StreamHandle stream, DeviceSpan from, DeviceSpan to) = 0;
  virtual Result<void> fill_zero(StreamHandle stream, DeviceSpan span) = 0;

  /// Makes copies from and to `memory` asynchronous where the device has something to do for that.
  virtual Result<void> pin(HostSpan memory) = 0;
  virtual void unpin(HostSpan memory) noexcept = 0;
};

}  // namespace penstock::tiers
