#include "tiers/device/host_stream.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

namespace penstock::tiers {

namespace {

class HostEvent final : public Event {
 public:
  Result<bool> query() const override {
    const auto record = last_record();
    return record == nullptr || record->passed.load();
  }
  /// Null if it was never recorded.
  std::shared_ptr<EventRecord> last_record() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }
  std::shared_ptr<EventRecord> new_record() const {
    auto record = std::make_shared<EventRecord>();
    const std::lock_guard lock(mutex_);
    return last_ = std::move(record);
  }

 private:
  mutable std::mutex mutex_;
  mutable std::shared_ptr<EventRecord> last_;
};

Error foreign_event(const char* operation) {
  return Error::invalid_argument(operation).object("event").reason("it is not an event of a HostDevice");
}

double speed_of(const HostDevice::Speeds& speeds, OperationCost::Resource resource) {
  switch (resource) {
    case OperationCost::Resource::copy_to_device: return speeds.copy_to_device;
    case OperationCost::Resource::copy_to_host: return speeds.copy_to_host;
    case OperationCost::Resource::compute: break;
  }
  return speeds.compute;
}

/// Bounded, so that sums of durations do not overflow.
TimePoint duration_of(const HostDevice::Speeds& speeds, const OperationCost& cost) {
  constexpr TimePoint most = std::chrono::hours(24 * 365);
  const TimePoint given = std::clamp(cost.duration, TimePoint::zero(), most);
  const double speed = speed_of(speeds, cost.resource);
  if (!(speed > 0)) return given;
  const std::chrono::duration<double> of_bytes(static_cast<double>(cost.bytes.value()) / speed);
  return given + (of_bytes < most ? std::chrono::duration_cast<TimePoint>(of_bytes) : most);
}

class EagerStream final : public HostStream {
 public:
  explicit EagerStream(std::shared_ptr<HostStreams> streams) : HostStream(std::move(streams), {}) {}
  Result<void> synchronize() override { return ok(); }

 private:
  void push(StreamOperation operation) override {
    if (operation.run) operation.run();
  }
  [[nodiscard]] bool can_wait() const override { return false; }
};

class EagerStreams final : public HostStreams {
 public:
  Result<std::unique_ptr<Stream>> create_stream() override {
    return std::make_unique<EagerStream>(shared_from_this());
  }
};

}  // namespace

void HostStream::enqueue(std::function<void()> operation, const OperationCost& cost) {
  if (!operation) return;
  push({.run = std::move(operation),
        .duration = duration_of(speeds_, cost),
        .resource = cost.resource <= OperationCost::Resource::copy_to_host ? cost.resource
                                                                           : OperationCost::Resource::compute,
        .record = nullptr});
}

Result<void> HostStream::record(Event& event) {
  const auto* const host_event = dynamic_cast<const HostEvent*>(&event);
  if (host_event == nullptr) return foreign_event("Stream::record");
  push({.run = [record = host_event->new_record()] { record->passed.store(true); }, .record = nullptr});
  return ok();
}

Result<void> HostStream::wait(const Event& event) {
  const auto* const host_event = dynamic_cast<const HostEvent*>(&event);
  if (host_event == nullptr) return foreign_event("Stream::wait");
  auto record = host_event->last_record();
  if (record == nullptr || record->passed.load()) return ok();
  if (!can_wait()) {
    return Error::invalid_argument("Stream::wait")
        .object("event")
        .reason("an eager stream cannot wait for a deferred or threaded device")
        .advice("create both on one HostDevice");
  }
  push({.run = nullptr, .record = std::move(record)});
  return ok();
}

std::shared_ptr<HostStreams> make_eager_streams() {
  return std::make_shared<EagerStreams>();
}

std::unique_ptr<Event> make_host_event() {
  return std::make_unique<HostEvent>();
}

}  // namespace penstock::tiers
