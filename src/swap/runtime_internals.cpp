#include "swap/runtime_internals.hpp"

#include "swap/runtime_state.hpp"
#include "tiers/device/device_errors.hpp"
#include "tiers/io/running_time.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace penstock::swap {

using tiers::TensorId;

RuntimeInternals::RuntimeInternals(Runtime& runtime) : state_(*runtime.state_) {}

Error RuntimeInternals::corrupted(TensorId tensor, std::size_t block) const {
  const std::lock_guard lock(state_.mutex);
  if (auto known = state_.check_known("Runtime::corrupted", tensor); !known) return known.error();
  Error error = state_.moves.corrupted(state_.store.description(tensor), block);
  state_.residency.note_corrupted(tensor, error);
  return error;
}

tiers::BlockTable& RuntimeInternals::blocks(TensorId tensor) const {
  const std::lock_guard lock(state_.mutex);
  return state_.store.blocks(tensor);
}

void RuntimeInternals::start(Move move) const {
  std::unique_lock lock(state_.mutex);
  state_.transfers.announce();
  state_.starting.push_back(std::move(move));
  state_.wake(std::move(lock));
}

std::size_t RuntimeInternals::stores_pending() const {
  const std::lock_guard lock(state_.mutex);
  return state_.residency.stores_pending();
}

PendingLease RuntimeInternals::request_for_mover(TensorId tensor, Access access, Use use) const {
  auto id = state_.ask(tensor, access, use, /*announced=*/false, /*requester=*/{});
  if (!id) return PendingLease(state_.shared_from_this(), id.error());
  return {state_.shared_from_this(), tensor, access, *id};
}

void RuntimeInternals::wake() const noexcept {
  state_.wake();
}

Result<void> RuntimeInternals::add_user(
    const RuntimeUse& use, const std::function<Result<void>(std::span<const RuntimeUse>)>& check) const {
  const std::lock_guard lock(state_.mutex);
  state_.users.push_back(use);
  auto checked = check(state_.users);
  if (!checked) state_.users.pop_back();
  return checked;
}

void RuntimeInternals::remove_user(std::uint32_t owner) const {
  const std::lock_guard lock(state_.mutex);
  std::erase_if(state_.users, [owner](const RuntimeUse& use) { return use.owner == owner; });
}

ByteCount RuntimeInternals::host_capacity() const {
  return state_.budget.size();
}

ByteCount RuntimeInternals::swap_capacity() const {
  if (state_.paths.empty()) return {};
  if (const ByteCount needed = state_.options.swap_need.total; !needed.is_zero()) return needed;
  ByteCount capacity;
  for (const auto& path : state_.paths) capacity += path->options().capacity;
  return capacity;
}

Result<void> RuntimeInternals::pin(tiers::Device& device) const {
  const std::lock_guard lock(state_.pin_mutex);
  if (state_.pin_count == 0) PENSTOCK_TRY(device.pin(state_.arena.bytes()));
  ++state_.pin_count;
  return ok();
}

void RuntimeInternals::unpin(tiers::Device& device) const {
  const std::lock_guard lock(state_.pin_mutex);
  if (--state_.pin_count == 0) device.unpin(state_.arena.bytes());
}

Result<void> RuntimeInternals::wait_until(const std::function<bool()>& done) const {
  std::unique_lock lock(state_.mutex);
  std::optional<Error> failed;
  state_.drive_until(lock,
                     [&] { return done() || (failed = state_.residency.take_store_error()).has_value(); });
  return state_.report_store_error(std::move(lock), std::move(failed));
}

void RuntimeInternals::wait_ignoring_stores(const std::function<bool()>& done) const {
  std::unique_lock lock(state_.mutex);
  state_.drive_until(lock, done);
}

bool RuntimeInternals::store_failed() const {
  return state_.residency.store_failed();
}

Result<void> RuntimeInternals::wait_for(const tiers::Event& event, const char* work,
                                        TimePoint deadline) const {
  constexpr TimePoint shortest = std::chrono::microseconds(50), longest = std::chrono::milliseconds(1);
  IdleHandler* const idle_handler = state_.options.idle_handler;
  tiers::RunningTime waited(Clock::steady(), tiers::running_time_step(deadline));
  const TimePoint began = waited.elapsed();
  while (true) {
    PENSTOCK_TRY_ASSIGN(const bool passed, event.query());
    if (passed) return ok();
    if (idle_handler != nullptr) {
      if (!state_.poll()) idle_handler->idle();
      continue;
    }
    (void)waited.update();
    const TimePoint so_far = waited.elapsed() - began;
    if (so_far > deadline) return tiers::device_overdue("Engine", work, deadline);
    std::this_thread::sleep_for(std::clamp(so_far / 4, shortest, longest));
  }
}

std::uint32_t RuntimeInternals::threads_waiting() const {
  const std::lock_guard lock(state_.mutex);
  return state_.waiting;
}

bool RuntimeInternals::has_threads() const {
  return state_.options.idle_handler == nullptr;
}

Executor& RuntimeInternals::executor() const {
  return *state_.executor;
}

}  // namespace penstock::swap
