#pragma once

#include <penstock/tiers/device/device.hpp>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace penstock::tiers {

/// A point in a stream: an event that is recorded once.
using Fence = std::shared_ptr<const Event>;

/// Records fences with events that it uses again once nothing refers to their fence. Safe from any thread; fences may
/// outlive it.
class EventPool {
 public:
  /// `device` outlives the last call.
  explicit EventPool(Device& device) : device_(device) {}

  /// Creates events, so that record() creates none while there are at most `count` fences. Errors: those of the device.
  [[nodiscard]] Result<void> reserve(std::size_t count);
  /// A fence after everything that is enqueued on `stream`. Errors: those of the device.
  [[nodiscard]] Result<Fence> record(Stream& stream);

 private:
  struct Free {
    std::mutex mutex;
    std::vector<std::unique_ptr<Event>> events;
  };

  Device& device_;
  std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

}  // namespace penstock::tiers
