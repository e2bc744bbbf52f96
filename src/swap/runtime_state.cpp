#include "swap/runtime_state.hpp"

#include "base/start_thread.hpp"
#include "tiers/store/tensor_slot.hpp"

#include <pthread.h>
#include <algorithm>
#include <span>
#include <string>
#include <utility>

namespace penstock::swap {

namespace {

ExtentAllocator make_extent_allocator(std::span<const std::unique_ptr<Path>> paths) {
  std::vector<ExtentAllocator::PathRoom> rooms;
  Alignment alignment;
  for (const auto& path : paths) {
    rooms.push_back({.weight = path->options().weight,
                     .capacity = path->options().capacity,
                     .reserved = path->options().reserved.value_or(path->options().capacity)});
    alignment = std::max(alignment, path->alignment());
  }
  return ExtentAllocator(rooms, alignment);
}

std::vector<PathOptions> paths_of(std::span<const std::unique_ptr<Path>> paths) {
  std::vector<PathOptions> options;
  for (const auto& path : paths) options.push_back(path->options());
  return options;
}

std::vector<std::string> file_names(std::span<const std::unique_ptr<Path>> paths) {
  std::vector<std::string> names;
  for (const auto& path : paths) names.push_back(path->file().name);
  return names;
}

}  // namespace

RuntimeState::RuntimeState(RuntimeOptions given, tiers::HostArena memory,
                           std::vector<std::unique_ptr<Path>> opened, std::unique_ptr<Timeline> written)
    : options(std::move(given)),
      executor(options.executor != nullptr ? options.executor : &inline_executor),
      timeline(std::move(written)),
      arena(std::move(memory)),
      paths(std::move(opened)),
      budget(tiers::Tier::host, options.host_budget, ledger),
      extents(make_extent_allocator(paths)),
      transfers(paths),
      moves(store, transfers,
            {.arena = arena.bytes(),
             .executor = executor,
             .wake = [this] { wake(); },
             .timeline = timeline.get()}),
      residency(store, budget, extents, ledger, moves,
                {.eviction = options.eviction,
                 .costs = transfer_costs(paths_of(paths)),
                 .reuse_distance_max = options.reuse_distance_max,
                 .lookahead = options.lookahead,
                 .file_names = file_names(paths),
                 .messages = std::move(options.messages)}) {
  moves.report_to(residency);
  for (const auto& path : paths) {
    if (!arena.bytes().empty()) path->attach(arena.bytes());
  }
}

std::vector<PathReport> RuntimeState::path_reports() const {
  std::vector<PathReport> reports;
  for (const auto& path : paths) reports.push_back(path->report());
  return reports;
}

Result<void> RuntimeState::pin_earlier_extents() {
  const std::lock_guard lock(mutex);
  for (const PinnedExtent& pinned : options.pinned) PENSTOCK_TRY(residency.pin_earlier(pinned));
  return ok();
}

Result<void> RuntimeState::start_threads() {
  if (options.idle_handler != nullptr) return ok();
  for (const auto& path : paths) PENSTOCK_TRY(path->start_driver([this] { wake(); }));
  PENSTOCK_TRY_ASSIGN(mover, start_thread("Runtime::create", "the mover", [this] { run_mover(); }));
  return ok();
}

/// Returns the error to the caller; the stores are queued again.
Result<void> RuntimeState::report_store_error(std::unique_lock<std::mutex> lock,
                                              std::optional<Error> store_error) {
  if (!store_error) return ok();
  advance();
  wake(std::move(lock));
  return *store_error;
}

Result<void> RuntimeState::check_known(const char* operation, tiers::TensorId tensor) const {
  if (std::find(in_removal.begin(), in_removal.end(), tensor) != in_removal.end()) {
    return Error::invalid_argument(operation)
        .object(store.description(tensor).name)
        .reason("the tensor is being removed");
  }
  if (store.contains(tensor)) return ok();
  return Error::invalid_argument(operation)
      .object("tensor " + std::to_string(tiers::slot_of(tensor)))
      .reason("this runtime has no such tensor: it was removed, or add() of this runtime did not return it");
}

Result<void> RuntimeState::check_usable(const char* operation, Caller caller, tiers::TensorId tensor) const {
  PENSTOCK_TRY(check_known(operation, tensor));
  if (caller == Caller::engine || !is_of_engine[tiers::slot_of(tensor)]) return ok();
  return Error::invalid_argument(operation)
      .object(store.description(tensor).name)
      .reason("the tensor is that of an engine, which alone uses it")
      .advice(
          "use the engine's calls: Engine::acquire() for parameters, read_states() and restore() for states");
}

Result<void> RuntimeState::check_unused(const char* operation, Caller caller, tiers::TensorId tensor) const {
  PENSTOCK_TRY(check_usable(operation, caller, tensor));
  if (!residency.in_use(tensor)) return ok();
  return Error::invalid_argument(operation)
      .object(store.description(tensor).name)
      .reason("the tensor has a lease or a pending request")
      .advice("end its leases, and cancel its requests, before this call");
}

Result<void> RuntimeState::prefetch(const char* operation, tiers::TensorId tensor, Hint hint) {
  std::unique_lock lock(mutex);
  PENSTOCK_TRY(check_known(operation, tensor));
  residency.prefetch(tensor, hint);
  advance();
  wake(std::move(lock));
  return ok();
}

void RuntimeState::wake() noexcept {
  if (options.idle_handler != nullptr) return;
  {
    const std::lock_guard lock(mutex);
    woken = true;
  }
  mover_wake.notify_one();
}

void RuntimeState::wake(std::unique_lock<std::mutex> lock) noexcept {
  // The mover has nothing to do then, and a lease of what is in memory costs no system call.
  if (transfers.active() == 0 && waiters.empty()) return;
  woken = true;
  lock.unlock();
  mover_wake.notify_one();
}

bool RuntimeState::poll() {
  bool moved = false;
  if (options.idle_handler != nullptr) {
    for (const auto& path : paths) moved |= path->drive();
    for (Runtime* const companion : companions) moved |= companion->poll();
  }
  events.clear();
  moved |= transfers.poll(events);

  {
    const std::lock_guard lock(mutex);
    const std::uint64_t outcomes = residency.outcome_count();
    for (const MoveEvent& event : events) {
      if (event.state == HopState::done) transfers.end();
      event.on_event(event.state, event.result);
    }
    advance();
    std::swap(starts, starting);
    moves.take_moves(starts);
    // A hop may wait for an outcome, and was polled before.
    moved |= !starts.empty() || residency.outcome_count() != outcomes;
    if (moved) waiters.notify();
  }
  for (Move& move : starts) transfers.start(std::move(move));
  starts.clear();
  if (timeline) timeline->flush();
  return moved;
}

void RuntimeState::count_stall(StallCause cause, TimePoint began) {
  stall_ns[static_cast<std::size_t>(cause)] += (Clock::steady().now() - began).count();
  if (timeline) timeline->add("waits", to_string(cause), began);
}

void RuntimeState::run_mover() {
  ::pthread_setname_np(::pthread_self(), "penstock-mover");
  bool was_woken = true;
  while (true) {
    if (poll()) continue;
    const TimePoint interval = transfers.poll_interval();
    std::unique_lock lock(mutex);
    const auto is_woken = [this] { return woken || stopping; };
    // Another thread's advance() may have granted a request. A poll that only the interval has caused changes nothing.
    if (was_woken) waiters.notify();
    if (interval == forever) {
      mover_wake.wait(lock, is_woken);
    } else {
      mover_wake.wait_for(lock, interval, is_woken);
    }
    if (stopping) return;
    was_woken = std::exchange(woken, false);
  }
}

}  // namespace penstock::swap
