#pragma once

#include <penstock/base/time.hpp>
#include <penstock/base/units.hpp>

#include <cstdint>
#include <functional>

namespace penstock {

/// What an operation uses of a device, for queues that model time; others ignore it. Operations that use one resource
/// run one after the other there.
struct OperationCost {
  enum class Resource : std::uint8_t { compute, copy_to_device, copy_to_host };
  Resource resource = Resource::compute;  ///< a value that has no name counts as compute
  ByteCount bytes{};                      ///< that it moves, at the resource's speed
  TimePoint duration{};                   ///< in addition; less than 0 counts as 0
};

/// A queue of operations on host memory, run in order: the stream of a HostDevice.
///
/// Host kernels enqueue their work here instead of running it, so that a test can defer it and detect a missing event
/// wait. Safe from one thread at a time.
class HostQueue {
 public:
  HostQueue() = default;
  HostQueue(const HostQueue&) = delete;
  HostQueue& operator=(const HostQueue&) = delete;
  virtual ~HostQueue() = default;

  /// Appends `operation`, which must not throw. It may run before this call returns, or later on any thread that
  /// waits for this queue. Objects that it refers to must stay alive until then. An empty function is ignored.
  virtual void enqueue(std::function<void()> operation, const OperationCost& cost = {}) = 0;
};

/// A device-independent handle of a stream: a HostQueue* on a host device, a cudaStream_t on CUDA. Only the adapter
/// of that kind of device interprets it. Copyable; owns nothing.
class StreamHandle {
 public:
  StreamHandle() = default;
  static StreamHandle from_native(void* native) { return StreamHandle(native); }
  static StreamHandle of(HostQueue& queue) { return StreamHandle(&queue); }

  [[nodiscard]] void* native() const { return native_; }
  /// Of a host device; null for a default handle.
  [[nodiscard]] HostQueue* host_queue() const { return static_cast<HostQueue*>(native_); }

 private:
  explicit StreamHandle(void* native) : native_(native) {}
  void* native_ = nullptr;
};

}  // namespace penstock
