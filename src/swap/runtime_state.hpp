#pragma once

#include "swap/path/extent_allocator.hpp"
#include "swap/path/path.hpp"
#include "swap/residency/host_residency.hpp"
#include "swap/timeline.hpp"
#include "swap/transfer/host_moves.hpp"
#include "swap/transfer/transfer_engine.hpp"
#include "swap/waiters.hpp"
#include "tiers/memory/host_arena.hpp"
#include "tiers/store/tensor_store.hpp"

#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/device/device.hpp>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace penstock::swap {

enum class ParkState : std::uint8_t { in_use, changing, parked };

/// Who calls: a user of the runtime has no use of the tensors that an engine has added.
enum class Caller : std::uint8_t { user, engine };

/// The implementation of a Runtime, shared with its leases. `mutex` protects store, budget and residency. No system
/// or CUDA call is made with it held.
struct RuntimeState : std::enable_shared_from_this<RuntimeState> {
  /// `written`: the timeline, or null.
  RuntimeState(RuntimeOptions given, tiers::HostArena memory, std::vector<std::unique_ptr<Path>> opened,
               std::unique_ptr<Timeline> written);
  /// Errors: invalid_argument, for RuntimeOptions::pinned.
  Result<void> pin_earlier_extents();
  /// Starts the drivers and the mover, unless the options have an idle_handler.
  ///
  /// Errors: no_space, at a limit on threads. The drivers that were started must be stopped then.
  Result<void> start_threads();

  /// Advances the residency and starts its moves. With the lock held.
  void advance() {
    residency.advance();
    (void)fail_starved();
  }
  /// Fails the requests for which nothing will make room. True if it has changed anything. With the lock held.
  bool fail_starved() {
    bool any = false;
    // A move that is blocked frees nothing.
    while (transfers.active() <= transfers.blocked() && residency.fail_starved_request()) {
      residency.advance();
      any = true;
    }
    return any;
  }
  [[nodiscard]] std::vector<PathReport> path_reports() const;
  /// Wakes the mover.
  void wake() noexcept;
  /// The same after a change by a caller that has the lock, which it releases; unless there are neither moves nor
  /// threads that wait.
  void wake(std::unique_lock<std::mutex> lock) noexcept;
  /// Errors: failed_state, while it is parked. With the lock held.
  [[nodiscard]] Result<void> check_not_parked(const char* operation) const;
  /// Sets park_state to `changing`. Errors: failed_state and unsupported, of Runtime::park().
  [[nodiscard]] Result<void> begin_park();
  /// Errors: invalid_argument, for a tensor that was not added, or that was or is being removed. With the lock held.
  [[nodiscard]] Result<void> check_known(const char* operation, tiers::TensorId tensor) const;
  /// Errors: invalid_argument, also for a tensor of an engine, of a user's call. With the lock held.
  [[nodiscard]] Result<void> check_usable(const char* operation, Caller caller, tiers::TensorId tensor) const;
  /// Errors: invalid_argument, also for a tensor with a lease or a pending request. With the lock held.
  [[nodiscard]] Result<void> check_unused(const char* operation, Caller caller, tiers::TensorId tensor) const;
  Result<void> prefetch(const char* operation, tiers::TensorId tensor, Hint hint);
  // For leases. After the runtime was destroyed they change nothing.
  [[nodiscard]] Result<RequestId> ask(tiers::TensorId tensor, Access access, Use use, bool announced,
                                      Requester requester);
  [[nodiscard]] std::optional<Result<HostSpan>> take(RequestId id, tiers::TensorId tensor);
  void cancel(std::optional<RequestId> id, tiers::TensorId tensor, Access access) noexcept;
  void end_lease(tiers::TensorId tensor, Access access, std::thread::id owner) noexcept;
  /// Errors: invalid_argument, when this thread's acquire() returned a lease that excludes one with `access`, or when
  /// it has requested one. With the lock held.
  [[nodiscard]] Result<void> check_not_own(tiers::TensorId tensor, Access access) const;

  bool poll();
  void run_mover();
  template <class Done>
  void drive_until(std::unique_lock<std::mutex>& lock, const Done& done, StallCause cause);
  /// A thread of the caller has waited since `began`.
  void count_stall(StallCause cause, TimePoint began);
  Result<void> report_store_error(std::unique_lock<std::mutex> lock, std::optional<Error> store_error);
  /// Changes the residency, advances it and wakes the mover.
  template <class Change>
  void change(const Change& change);

  RuntimeOptions options;
  InlineExecutor inline_executor;
  Executor* executor;
  std::unique_ptr<Timeline> timeline;  // null: nothing is written
  tiers::Ledger ledger;
  tiers::HostArena arena;
  std::vector<std::unique_ptr<Path>> paths;
  tiers::MemoryBudget budget;
  tiers::TensorStore store;
  ExtentAllocator extents;
  TransferEngine transfers;
  HostMoves moves;
  HostResidency residency;

  mutable std::mutex mutex;
  Waiters waiters;
  std::condition_variable mover_wake;
  std::vector<Move> starting;  // from callers, not yet started by the mover
  struct OwnedLease {
    tiers::TensorId tensor;
    Access access;
    std::thread::id owner;
    bool operator==(const OwnedLease&) const = default;
  };
  std::vector<OwnedLease> owned;            // leases that acquire() returned
  std::vector<bool> is_of_engine;           // by the slots of tensors
  std::vector<tiers::TensorId> in_removal;  // remove() waits for their transfers
  std::vector<RuntimeUse> users;
  ByteCount staging_least;                       // beside what stays in memory, with which they make progress
  std::size_t vacated_count = 0;                 // tensors whose ranges are vacated
  ByteCount memory_limit = options.host_budget;  // the lower one, at most the budget
  static constexpr const char* advice_without_limit =
      "call limit_memory() with the whole budget first; a rank's own limit, for penstock.memory_reserve, "
      "ends when "
      "more memory is available";
  std::mutex limit_mutex;       // one limit_memory() at a time; taken before the others
  std::mutex memory_mutex;      // held during calls of a device and while pages are given or taken back
  std::uint32_t pin_count = 0;  // users that have called pin() and not unpin()
  tiers::Device* registered_with = nullptr;  // the device that has the arena registered
  tiers::Device* pinned_for = nullptr;       // the device of pin()
  std::uint32_t given_back_count = 0;        // users that have given back pages of the arena
  std::vector<HostSpan> abandoned;           // pages of users that have left
  std::vector<Runtime*> companions;          // that poll() polls too
  ParkState park_state = ParkState::in_use;
  tiers::TensorId all_memory{};       // what a runtime that parks leases itself
  std::vector<std::string> messages;  // for take_messages(), beside those of the residency and the paths
  bool woken = false, stopping = false;
  bool closing = false;       // the runtime is being destroyed
  std::uint32_t waiting = 0;  // threads in acquire()
  std::array<std::atomic<std::int64_t>, stall_cause_count> stall_ns{};
  std::vector<MoveEvent> events;  // used by the mover only, as are the moves that it starts in one run
  std::vector<Move> starts;
  std::thread mover;
};

template <class Change>
void RuntimeState::change(const Change& change) {
  std::unique_lock lock(mutex);
  if (stopping) return;
  change();
  advance();
  wake(std::move(lock));
}

/// Evaluates `done` with the lock held, in this thread or in the mover, until it was true: see Waiters::wait().
template <class Done>
void RuntimeState::drive_until(std::unique_lock<std::mutex>& lock, const Done& done, StallCause cause) {
  if (done()) return;
  const TimePoint began = Clock::steady().now();
  if (options.idle_handler == nullptr) {
    // This thread frees no memory while it waits: a request may starve now.
    advance();
    woken = true;
    mover_wake.notify_one();
    waiters.wait(lock, done);
  } else {
    while (!done()) {
      lock.unlock();
      if (!poll()) options.idle_handler->idle();
      lock.lock();
    }
  }
  count_stall(cause, began);
}

}  // namespace penstock::swap
