#pragma once

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
/// wait fails in a unit test. A deferred device is used by one thread at a time.
///
/// Errors of copies, fills, and of streams: invalid_argument, for a default StreamHandle, a null address, and an event
/// of another kind of device.
class HostDevice final : public Device {
 public:
  enum class Mode : std::uint8_t { eager, deferred };
  struct Options {
    ByteCount memory;  ///< what allocate() hands out at most
    Mode mode = Mode::eager;
    std::uint64_t seed = 0;
    /// What the device says of its memory. With `separate` it is used like an accelerator: a rank that is alone copies
    /// its tensors too.
    DeviceMemory location = DeviceMemory::host;
  };
  explicit HostDevice(const Options& options);
  /// Runs the operations that its streams have not run yet, as far as their events allow.
  ~HostDevice() override;

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] DeviceMemory memory() const override;
  [[nodiscard]] Result<DeviceSpan> allocate(ByteCount size) override;
  /// Ignores a span that allocate() did not return or that was released already.
  void release(DeviceSpan span) noexcept override;
  [[nodiscard]] ByteCount free_memory() const override;
  [[nodiscard]] Result<std::unique_ptr<Stream>> create_stream() override;
  [[nodiscard]] Result<std::unique_ptr<Event>> create_event() override;
  Result<void> copy_to_device(StreamHandle stream, ConstHostSpan from, DeviceSpan to) override;
  Result<void> copy_to_host(StreamHandle stream, DeviceSpan from, HostSpan to) override;
  Result<void> copy_on_device(StreamHandle stream, DeviceSpan from, DeviceSpan to) override;
  Result<void> fill_zero(StreamHandle stream, DeviceSpan span) override;
  Result<void> pin(HostSpan) override { return ok(); }
  void unpin(HostSpan) noexcept override {}

  /// Deferred mode: runs one operation that is ready, of a stream chosen by the seed. False when none is.
  bool run_one();

  /// The bytes behind a span of this device. For host code that reads results, such as a test.
  [[nodiscard]] static HostSpan bytes(DeviceSpan span);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::tiers
