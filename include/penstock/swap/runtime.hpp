#pragma once

#include <penstock/swap/path/extent_allocator.hpp>
#include <penstock/swap/path/path.hpp>
#include <penstock/swap/path/size_swap_files.hpp>
#include <penstock/swap/policy/eviction_policy.hpp>
#include <penstock/swap/transfer/swapper.hpp>
#include <penstock/swap/transfer/transfer_engine.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/tiers/memory/host_arena.hpp>
#include <penstock/tiers/store/ledger.hpp>
#include <penstock/tiers/store/memory_budget.hpp>
#include <penstock/tiers/store/tensor_store.hpp>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace penstock::swap {

class Runtime;

/// The right to a tensor's bytes in host memory. While it lives, they stay and stay put. Move-only; ended by
/// end() or on destruction. The runtime outlives it. Used by one thread at a time.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept { swap(other); }
  Lease& operator=(Lease&& other) noexcept {
    end();
    swap(other);
    return *this;
  }
  ~Lease() { end(); }

  [[nodiscard]] HostSpan bytes() const { return bytes_; }
  [[nodiscard]] bool held() const { return runtime_ != nullptr; }
  /// Ends it. After modify and overwrite, the tensor has a new version.
  void end() noexcept;

 private:
  friend class Runtime;
  Lease(Runtime& runtime, tiers::TensorId tensor, Access access, HostSpan bytes)
      : runtime_(&runtime), tensor_(tensor), access_(access), bytes_(bytes) {}
  void swap(Lease& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(tensor_, other.tensor_);
    std::swap(access_, other.access_);
    std::swap(bytes_, other.bytes_);
  }

  Runtime* runtime_ = nullptr;
  tiers::TensorId tensor_{};
  Access access_{};
  HostSpan bytes_;
};

/// How something that waits gives others their turn when no thread of the runtime's own does.
class IdleHandler {
 public:
  virtual ~IdleHandler() = default;
  /// Called by whoever waits, after its own runtime has found nothing to do: lets other ranks run, lets
  /// simulated time pass, lets a deferred stream run one operation.
  virtual void idle() = 0;
};

struct RuntimeOptions {
  ByteCount host_budget;  ///< host memory of this rank, all of it taken at create
  tiers::Pinning pinning = tiers::Pinning::none;
  std::vector<PathOptions> paths;  ///< may be empty: everything stays in memory
  /// Not zero: what size_swap_files() sizes the paths for, whose own sizes do not count then.
  SwapNeed swap_need;
  std::vector<std::string>
      messages;  ///< the first that take_messages() tells; size_swap_files() adds its own
  Eviction eviction = Eviction::planned;
  ByteCount lookahead = 64_MiB;         ///< loaded ahead of its use, at most
  Executor* executor = nullptr;         ///< runs checksums; null: on the thread that moves. Outlives it
  IdleHandler* idle_handler = nullptr;  ///< null: threads of its own drive it. Outlives it
};

/// Store, budget, paths and threads of one rank: the coordinator.
///
/// The state (store, budget, swapper) is under one mutex, which no system or CUDA call is made with. One
/// *mover* advances the moves, without the mutex: a thread of its own, or, when `driving` is given, whoever
/// waits. Each path has a driver thread beside it. Engines attach to a runtime and go before it.
///
/// A write-behind that fails on one path goes to another one that has room; see Swapper. Where there is none it
/// leaves its tensor dirty in memory. Its error is told once, to the next call that
/// says so (acquire, drain, wait_until, check_stores), which may then be made again; the tensor is stored
/// again from there on. Until it is told, what needs room waits.
///
/// Safe from any thread. acquire(), remove(), drain() and the calls named wait block.
class Runtime {
 public:
  /// Errors: no_space and permission, of the arena; those of size_swap_files() and of Path::create, naming the directory.
  [[nodiscard]] static Result<std::unique_ptr<Runtime>> create(RuntimeOptions options);
  /// The same over paths of the caller's, such as simulated ones; options.paths is not used.
  [[nodiscard]] static Result<std::unique_ptr<Runtime>> create(RuntimeOptions options,
                                                               std::vector<std::unique_ptr<Path>> paths);
  /// Waits for what is in flight, then stops the threads. No lease lives any more.
  ~Runtime();

  /// Adds a tensor. `on_disk` gives it an extent, dealt to the paths in proportion to their weights; one that is
  /// to stay in memory has its range there from now on.
  ///
  /// Errors: no_space, when no path has room (wanted, free); budget_too_small, when host memory has none.
  [[nodiscard]] Result<tiers::TensorId> add(tiers::TensorDescription description, bool on_disk);
  /// Gives the tensor back, its memory and its extent, once it is at rest. Unleased, with no request open.
  void remove(tiers::TensorId tensor);

  /// Blocks until the lease is granted. Errors: those of Swapper::take; that of a failed write-behind.
  [[nodiscard]] Result<Lease> acquire(tiers::TensorId tensor, Access access);
  /// The two halves of acquire(): asks, and then answers once it is decided.
  [[nodiscard]] Ticket request(tiers::TensorId tensor, Access access);
  [[nodiscard]] std::optional<Result<Lease>> take(Ticket ticket, tiers::TensorId tensor, Access access);
  /// Nobody will take this ticket.
  void cancel(Ticket ticket, tiers::TensorId tensor, Access access);

  /// See Swapper.
  void use(tiers::TensorId tensor);
  void end_round();
  void prefetch(tiers::TensorId tensor);
  void discard(tiers::TensorId tensor);
  /// Waits until at most `count` write-behinds are on their way. A failed one is told to the next request.
  void wait_for_stores(std::size_t count);
  /// Waits until every write-behind has reached its extent. Errors: the first that failed.
  Result<void> drain();
  /// Whether every write-behind that has ended has succeeded. Errors: the first that failed, once.
  Result<void> check_stores();

  /// What has happened to the paths since the last call and was returned to nobody as an error, a line each:
  /// stores that went elsewhere, paths taken out of use and drained.
  [[nodiscard]] std::vector<std::string> take_messages();

  /// A block does not verify, where the caller checks it in a pass of its own: what to say of it.
  [[nodiscard]] Error corrupted(tiers::TensorId tensor, std::size_t block) {
    const std::lock_guard lock(mutex_);
    return swapper_->note_corrupted(tensor, block);
  }
  /// The checksums of a tensor, for such a pass. They stay where they are until it is removed.
  [[nodiscard]] tiers::BlockTable& blocks(tiers::TensorId tensor) {
    const std::lock_guard lock(mutex_);
    return store_->blocks(tensor);
  }

  /// Hands a move of the caller's to the mover.
  void start(Move move);
  /// Makes the mover look at its moves again. Safe from any thread, and from an executor's.
  void wake() noexcept;

  /// Blocks until `done()` is true; it is evaluated with the coordinator's lock held. Drives, when nobody
  /// else does. Errors: of a failed write-behind, when `done()` is not true yet.
  Result<void> wait_until(const std::function<bool()>& done);
  /// The same for what comes to rest by itself, whatever becomes of write-behinds.
  void wait_for_rest(const std::function<bool()>& at_rest);
  /// Whether a write-behind has failed that nobody has heard of. For predicates: with the lock held.
  [[nodiscard]] bool store_failed() const { return swapper_->store_failed(); }
  /// Blocks until the event's last record has been passed. Drives, when nobody else does.
  Result<void> wait_for(const tiers::Event& event);
  /// One turn of the mover, for `driving`: true when something moved.
  bool poll();

  [[nodiscard]] tiers::TensorStore& store() { return *store_; }
  [[nodiscard]] tiers::Ledger& ledger() { return ledger_; }
  [[nodiscard]] tiers::MemoryBudget& host_budget() { return *budget_; }
  [[nodiscard]] const tiers::HostArena& arena() const { return arena_; }
  [[nodiscard]] std::span<const std::unique_ptr<Path>> paths() const { return paths_; }
  [[nodiscard]] Executor& executor() { return *executor_; }
  /// Guards what the caller shares with its moves' on_event.
  [[nodiscard]] std::mutex& mutex() { return mutex_; }
  /// The time that callers of acquire() and of the waits for bytes have spent waiting.
  [[nodiscard]] TimePoint stall_time() const { return TimePoint(stall_ns_.load()); }

 private:
  friend class Lease;
  Runtime(RuntimeOptions options, tiers::HostArena arena, std::vector<std::unique_ptr<Path>> paths);
  void run_mover();
  template <class Done>
  void drive_until(std::unique_lock<std::mutex>& lock, const Done& done);
  Result<void> tell(std::unique_lock<std::mutex>& lock, std::optional<Error> store_error);
  void end_lease(tiers::TensorId tensor, Access access) noexcept;

  RuntimeOptions options_;
  InlineExecutor inline_executor_;
  Executor* executor_;
  tiers::Ledger ledger_;
  tiers::HostArena arena_;
  std::vector<std::unique_ptr<Path>> paths_;
  std::unique_ptr<tiers::MemoryBudget> budget_;
  std::unique_ptr<tiers::TensorStore> store_;
  ExtentAllocator extents_;
  TransferEngine transfers_;
  std::unique_ptr<Swapper> swapper_;

  std::mutex mutex_;
  std::condition_variable changed_, mover_wake_;
  std::vector<Move> starting_;  // handed in by callers, not yet with the mover
  bool woken_ = false, stopping_ = false;
  std::atomic<std::int64_t> stall_ns_{0};
  std::vector<MoveEvent> events_;  // the mover's, as is what it starts in this turn
  std::vector<Move> starts_;
  std::thread mover_;
};

}  // namespace penstock::swap
