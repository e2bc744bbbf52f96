#pragma once

#include <penstock/tiers/device/host_device.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace penstock::tiers {

/// One record of an event. Who waits for it does not wait for later records of the event, perhaps on other streams.
/// Queues share it, so that an event may be destroyed before the operations that record it or wait for it run.
struct EventRecord {
  std::atomic<bool> passed{false};
};

/// An operation that a stream has not run yet: `run`, or a wait for `record`.
struct StreamOperation {
  std::function<void()> run;
  TimePoint duration{};
  OperationCost::Resource resource{};
  std::shared_ptr<const EventRecord> record;

  [[nodiscard]] bool may_run() const { return !record || record->passed.load(); }
};

class HostStreams;

/// A stream of a host device. A mode says what push() does with an operation.
class HostStream : public Stream, public HostQueue {
 public:
  HostStream(std::shared_ptr<HostStreams> streams, const HostDevice::Speeds& speeds)
      : of_device_(std::move(streams)), speeds_(speeds) {}

  [[nodiscard]] bool is_of(const HostStreams& streams) const { return of_device_.get() == &streams; }
  StreamHandle handle() final { return StreamHandle::of(*this); }
  void enqueue(std::function<void()> operation, const OperationCost& cost) final;
  Result<void> record(Event& event) final;
  Result<void> wait(const Event& event) final;

 private:
  virtual void push(StreamOperation operation) = 0;
  /// Whether the stream can wait for an event that has not passed.
  [[nodiscard]] virtual bool can_wait() const { return true; }

  const std::shared_ptr<HostStreams> of_device_;
  const HostDevice::Speeds speeds_;
};

/// Runs the operations of one device's streams, which share it, so that they may be destroyed after the device.
class HostStreams : public std::enable_shared_from_this<HostStreams> {
 public:
  HostStreams() = default;
  HostStreams(const HostStreams&) = delete;
  HostStreams& operator=(const HostStreams&) = delete;
  virtual ~HostStreams() = default;

  [[nodiscard]] virtual Result<std::unique_ptr<Stream>> create_stream() = 0;
  /// See HostDevice.
  virtual bool run_one() { return false; }
  /// See ~HostDevice(). Streams may outlive it.
  virtual void finish() {}
  [[nodiscard]] virtual TimePoint next_due() const { return forever; }
};

[[nodiscard]] std::shared_ptr<HostStreams> make_eager_streams();
[[nodiscard]] std::shared_ptr<HostStreams> make_deferred_streams(const HostDevice::Options& options);
[[nodiscard]] std::shared_ptr<HostStreams> make_threaded_streams(const HostDevice::Speeds& speeds);

[[nodiscard]] std::unique_ptr<Event> make_host_event();

}  // namespace penstock::tiers
