#pragma once

#include <penstock/tiers/device/device.hpp>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

namespace penstock::tiers {

/// Host memory that plays an accelerator, for machines without one and for tests.
///
/// A stream runs what it is given *eagerly*, on the thread that gives it, or *deferred*: only when a thread
/// waits or calls run_one(), in any order that streams and events allow, chosen by a seed. A forgotten
/// event wait then fails in a unit test. A deferred device is used by one thread at a time.
class HostDevice final : public Device {
 public:
  enum class Mode : std::uint8_t { eager, deferred };
  struct Options {
    ByteCount memory;  ///< what allocate() hands out at most
    Mode mode = Mode::eager;
    std::uint64_t seed = 0;
  };
  explicit HostDevice(const Options& options);
  ~HostDevice() override;

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] Result<DeviceSpan> allocate(ByteCount size) override;
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
  friend class HostStream;
  friend class HostEvent;

  const Options options_;
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, ByteCount> allocations_;
  ByteCount used_;
  std::vector<class HostStream*> streams_;
  std::uint64_t random_;
};

}  // namespace penstock::tiers
