#include "swap/runtime_internals.hpp"

#include "swap/runtime_state.hpp"
#include "tiers/device/device_errors.hpp"
#include "tiers/io/running_time.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace penstock::swap {

using tiers::TensorId;

RuntimeInternals::RuntimeInternals(Runtime& runtime) : runtime_(runtime), state_(*runtime.state_) {}

Result<TensorId> RuntimeInternals::add(tiers::TensorDescription description, bool on_disk) const {
  return runtime_.add_as(Caller::engine, std::move(description), on_disk);
}

Result<void> RuntimeInternals::remove(TensorId tensor) const {
  return runtime_.remove_as(Caller::engine, tensor);
}

Result<Lease> RuntimeInternals::acquire(TensorId tensor, Access access, Use use) const {
  return runtime_.acquire_as(Caller::engine, tensor, access, use);
}

PendingLease RuntimeInternals::request(TensorId tensor, Access access, Use use) const {
  return runtime_.request_as(Caller::engine, tensor, access, use);
}

PendingLease RuntimeInternals::announce(TensorId tensor, Access access) const {
  return runtime_.announce_as(Caller::engine, tensor, access);
}

Result<void> RuntimeInternals::discard(TensorId tensor) const {
  return runtime_.discard_as(Caller::engine, tensor);
}

Result<RuntimeInternals::PinnedTensor> RuntimeInternals::pin_extent(TensorId tensor,
                                                                    std::uint64_t generation) const {
  std::unique_lock lock(state_.mutex);
  PENSTOCK_TRY(state_.check_known("RuntimeInternals::pin_extent", tensor));
  const auto is_at_rest = [&] { return state_.store.copy(tensor).state != tiers::CopyState::storing; };
  // A store may start before this thread has the lock again.
  while (!is_at_rest()) state_.drive_until(lock, is_at_rest, StallCause::stores);
  PENSTOCK_TRY(state_.residency.pin_extent(tensor, generation));
  const tiers::BlockTable& blocks = state_.store.blocks(tensor);
  PinnedTensor pinned{
      .description = state_.store.description(tensor), .step = blocks.step(), .checksums = {}};
  for (std::size_t block = 0; block < blocks.block_count(); ++block)
    pinned.checksums.push_back(blocks.record(block).hash);
  return pinned;
}

void RuntimeInternals::release_generation(std::uint64_t generation) const {
  state_.change([&] { state_.residency.release_generation(generation); });
}

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

void RuntimeInternals::store_from(TensorId tensor, HostSpan bytes) const {
  state_.change([&] { state_.residency.store_from(tensor, bytes); });
}

void RuntimeInternals::start(Move move) const {
  std::unique_lock lock(state_.mutex);
  state_.transfers.announce();
  state_.starting.push_back(std::move(move));
  state_.wake(std::move(lock));
}

Result<void> RuntimeInternals::sync_files(const std::set<std::uint32_t>& paths) const {
  Result<void> outcome = ok();
  std::size_t left = paths.size();  // with the lock held
  for (const std::uint32_t path : paths) {
    Move move;
    move.then(state_.transfers.disk_hop(tiers::IoOperation::flush, {.path = path}, {}));
    move.on_event = [this, &outcome, &left, path](HopState state, const Result<void>& result) {
      if (state != HopState::done) return;
      --left;
      if (result) return;
      state_.residency.note_lost_writes(path, result.error());
      if (outcome) outcome = result;
    };
    start(std::move(move));
  }
  wait_ignoring_stores([&left] { return left == 0; });
  return outcome;
}

std::size_t RuntimeInternals::stores_pending() const {
  const std::lock_guard lock(state_.mutex);
  return state_.residency.stores_pending();
}

Result<void> RuntimeInternals::finish_stores() const {
  return wait_until([this] { return state_.residency.all_stored(); }, StallCause::stores);
}

std::map<tiers::Purpose, ByteCount> RuntimeInternals::begin_stores(std::span<const TensorId> tensors) const {
  std::map<tiers::Purpose, ByteCount> bytes;
  state_.change([&] {
    for (const TensorId tensor : tensors) {
      if (!state_.store.contains(tensor) || !state_.residency.ask_store(tensor)) continue;
      const auto& description = state_.store.description(tensor);
      bytes[description.purpose] += description.extent->length;
    }
  });
  return bytes;
}

Result<void> RuntimeInternals::end_stores(std::span<const TensorId> tensors) const {
  std::optional<Error> failed;
  const auto ended = [&] {
    if (std::any_of(tensors.begin(), tensors.end(),
                    [this](TensorId tensor) { return state_.residency.is_asked(tensor); }))
      return false;
    for (const TensorId tensor : tensors) {
      if (!failed) failed = state_.residency.asked_error(tensor);
    }
    return true;
  };
  wait_ignoring_stores(ended, StallCause::stores);
  if (failed) return *std::move(failed);
  return finish_stores();
}

RuntimeInternals::Vacated RuntimeInternals::vacate(std::span<const TensorId> tensors) const {
  Vacated vacated;
  state_.change([&] {
    for (const TensorId tensor : tensors) {
      auto range = state_.residency.vacate(tensor);
      if (!range) continue;
      vacated.tensors.push_back(tensor);
      vacated.ranges.push_back(state_.arena.bytes().subspan(ByteCount(range->offset()), range->size()));
      vacated.reservations.push_back(*std::move(range));
    }
    state_.vacated_count += vacated.tensors.size();
  });
  return vacated;
}

void RuntimeInternals::reuse(Vacated vacated) const {
  state_.change([&] {
    for (const TensorId tensor : vacated.tensors) state_.residency.end_vacancy(tensor);
    state_.vacated_count -= vacated.tensors.size();
    vacated = {};
  });
}

ByteCount RuntimeInternals::memory_limit() const {
  const std::lock_guard lock(state_.mutex);
  return state_.memory_limit < state_.budget.size() ? state_.memory_limit : state_.arena.bytes().size();
}

bool RuntimeInternals::memory_is_limited() const {
  const std::lock_guard lock(state_.mutex);
  return state_.residency.memory_is_limited();
}

std::vector<PathReport> RuntimeInternals::paths_when_stored() const {
  std::map<std::uint32_t, ByteCount> to_store;
  {
    const std::lock_guard lock(state_.mutex);
    to_store = state_.residency.bytes_to_store();
  }
  std::vector<PathReport> reports = state_.path_reports();  // later: what is stored meanwhile counts twice
  for (const auto& [path, bytes] : to_store) reports.at(path).counters.bytes_written += bytes;
  return reports;
}

PendingLease RuntimeInternals::request_for_mover(TensorId tensor, Access access, Use use) const {
  auto id = state_.ask(tensor, access, use, /*announced=*/false, /*requester=*/{});
  if (!id) return PendingLease(state_.shared_from_this(), id.error());
  return {state_.shared_from_this(), tensor, access, *id, /*use_is_counted=*/false};
}

PendingLease RuntimeInternals::request_later(TensorId tensor, Access access) const {
  return {state_.shared_from_this(), tensor, access, std::nullopt, /*use_is_counted=*/false};
}

Result<void> RuntimeInternals::prefetch_next(TensorId tensor) const {
  return state_.prefetch("RuntimeInternals::prefetch_next", tensor, Hint::next);
}

void RuntimeInternals::wake() const noexcept {
  state_.wake();
}

Result<void> RuntimeInternals::add_user(
    const RuntimeUse& use, const std::function<Result<ByteCount>(std::span<const RuntimeUse>)>& check) const {
  {
    const std::lock_guard lock(state_.memory_mutex);
    take_back_abandoned();
  }
  const std::lock_guard lock(state_.mutex);
  if (state_.memory_limit < state_.budget.size()) {
    return Error(ErrorCode::failed_state, "Engine::create")
        .reason("the runtime's memory is limited")
        .advice(RuntimeState::advice_without_limit);
  }
  state_.users.push_back(use);
  auto checked = check(state_.users);
  if (!checked) {
    state_.users.pop_back();
    return checked.error();
  }
  state_.staging_least = *checked;
  return ok();
}

void RuntimeInternals::remove_user(std::uint32_t owner) const {
  const std::lock_guard lock(state_.mutex);
  std::erase_if(state_.users, [owner](const RuntimeUse& use) { return use.owner == owner; });
  if (state_.users.empty()) state_.staging_least = {};  // else it is enough
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

void RuntimeInternals::accompany(Runtime& companion) const {
  state_.companions.push_back(&companion);
}

void RuntimeInternals::leave(Runtime& companion) const {
  std::erase(state_.companions, &companion);
}

RuntimeOptions RuntimeInternals::options() const {
  RuntimeOptions options = state_.options;
  options.paths.clear();
  const std::lock_guard lock(state_.mutex);
  for (std::uint32_t path = 0; path < state_.paths.size(); ++path) {
    if (state_.extents.in_use(path)) options.paths.push_back(state_.paths[path]->options());
  }
  return options;
}

Result<void> RuntimeInternals::wait_until(const std::function<bool()>& done, StallCause cause) const {
  std::unique_lock lock(state_.mutex);
  std::optional<Error> failed;
  const auto ends = [&] { return done() || (failed = state_.residency.take_store_error()).has_value(); };
  state_.drive_until(lock, ends, cause);
  return state_.report_store_error(std::move(lock), std::move(failed));
}

void RuntimeInternals::wait_ignoring_stores(const std::function<bool()>& done, StallCause cause) const {
  std::unique_lock lock(state_.mutex);
  state_.drive_until(lock, done, cause);
}

void RuntimeInternals::add_message(std::string message) const {
  const std::lock_guard lock(state_.mutex);
  state_.messages.push_back(std::move(message));
}

Timeline* RuntimeInternals::timeline() const {
  return state_.timeline.get();
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
  const TimePoint called = Clock::steady().now();
  for (bool has_waited = false;; has_waited = true) {
    PENSTOCK_TRY_ASSIGN(const bool passed, event.query());
    if (passed && has_waited) state_.count_stall(StallCause::device, called);
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
