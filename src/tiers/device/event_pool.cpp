#include "tiers/device/event_pool.hpp"

#include <utility>

namespace penstock::tiers {

Result<void> EventPool::reserve(std::size_t count) {
  const std::lock_guard lock(free_->mutex);
  while (free_->events.size() < count) {
    PENSTOCK_TRY_ASSIGN(auto event, device_.create_event());
    free_->events.push_back(std::move(event));
  }
  return ok();
}

Result<Fence> EventPool::record(Stream& stream) {
  std::unique_ptr<Event> event;
  {
    const std::lock_guard lock(free_->mutex);
    if (!free_->events.empty()) {
      event = std::move(free_->events.back());
      free_->events.pop_back();
    }
  }
  if (event == nullptr) {
    PENSTOCK_TRY_ASSIGN(event, device_.create_event());
  }
  PENSTOCK_TRY(stream.record(*event));
  const auto keep = [free = free_](Event* returned) {
    std::unique_ptr<Event> owned(returned);
    const std::lock_guard lock(free->mutex);
    free->events.push_back(std::move(owned));
  };
  return Fence(std::shared_ptr<Event>(event.release(), keep));
}

}  // namespace penstock::tiers
