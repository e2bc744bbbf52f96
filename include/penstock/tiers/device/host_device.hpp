#pragma once

#include <penstock/base/time.hpp>
#include <penstock/tiers/device/device.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace penstock::tiers {

/// A device in host memory, for machines without an accelerator and for tests.
///
///     HostDevice device({.memory = 1_GiB});
///     PENSTOCK_TRY_ASSIGN(const DeviceSpan span, device.allocate(1_MiB));
///     PENSTOCK_TRY_ASSIGN(const auto stream, device.create_stream());
///     PENSTOCK_TRY(device.copy_to_device(stream->handle(), bytes, span));
///
/// An *eager* device runs an operation at once, on the calling thread. A *deferred* device runs it only when a thread
/// waits or calls run_one(); a seed chooses the stream among those whose events allow it, so that a forgotten event
/// wait fails in a unit test. A deferred device is used by one thread at a time. A *threaded* device has a thread for
/// each stream, as an accelerator runs its streams by itself.
///
/// Host code joins the order of a stream with stream->handle().host_queue()->enqueue(): an accelerator's kernel is then
/// a function. On an eager device it may also run at once, without the queue.
///
/// allocate() populates its memory, from 16 MiB on: the machine's memory must suffice then, not later.
///
/// With `speeds` an operation takes time: on the machine's clock on a threaded device, on `clock` on a deferred one. It
/// takes effect when it ends. On an eager device it takes none.
///
/// Errors of copies, fills, and of streams: invalid_argument, for a default StreamHandle, a null address, an event of
/// another kind of device, and, where an eager stream is to wait, an event that has not passed on a device that is not
/// eager.
class HostDevice final : public Device {
 public:
  enum class Mode : std::uint8_t { eager, deferred, threaded };
  /// In bytes a second. Bytes of a speed that is not above 0 take no time.
  struct Speeds {
    double copy_to_device = 0, copy_to_host = 0;
    double compute = 0;  ///< bytes that kernels, fills and copies on the device read and write
  };
  struct Options {
    ByteCount memory;  ///< what allocate() hands out at most
    Mode mode = Mode::eager;
    std::uint64_t seed = 0;
    /// What the device says of its memory. With `separate` it is used like an accelerator: a rank that is alone copies
    /// its tensors too.
    DeviceMemory location = DeviceMemory::host;
    Speeds speeds = {};  ///< of a deferred device only with a clock
    /// Of a deferred device; outlives it. Null: operations take no time.
    const Clock* clock = nullptr;
  };
  explicit HostDevice(const Options& options);
  /// Runs the operations that its streams have not run yet, as far as their events allow; they take no time from then
  /// on.
  ~HostDevice() override;

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] DeviceMemory memory() const override;
  [[nodiscard]] Result<DeviceSpan> allocate(ByteCount size) override;
  /// Ignores a span that allocate() did not return or that was released already.
  void release(DeviceSpan span) noexcept override;
  [[nodiscard]] ByteCount free_memory() const override;
  [[nodiscard]] Result<std::unique_ptr<Stream>> create_stream() override;
  [[nodiscard]] Result<std::unique_ptr<Event>> create_event() override;
  [[nodiscard]] Result<std::unique_ptr<StreamClock>> create_clock() override;
  [[nodiscard]] bool owns_stream(const Stream& stream) const override;
  Result<void> copy_to_device(StreamHandle stream, ConstHostSpan from, DeviceSpan to) override;
  Result<void> copy_to_host(StreamHandle stream, DeviceSpan from, HostSpan to) override;
  Result<void> copy_on_device(StreamHandle stream, DeviceSpan from, DeviceSpan to) override;
  Result<void> fill_zero(StreamHandle stream, DeviceSpan span) override;
  Result<void> pin(HostSpan) override { return ok(); }
  void unpin(HostSpan) noexcept override {}

  /// Deferred mode: runs one operation that is ready and has ended, of a stream chosen by the seed. False when none
  /// has.
  bool run_one();
  /// Deferred mode with a clock: when the next operation ends that has begun. Operations begin in run_one(), so call
  /// that until it returns false, then advance the clock to this time. forever when none has begun.
  [[nodiscard]] TimePoint next_due() const;

  /// The bytes behind a span of this device. For host code that reads results, such as a test.
  [[nodiscard]] static HostSpan bytes(DeviceSpan span);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::tiers
