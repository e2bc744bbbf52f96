#pragma once

#include <penstock/base/executor.hpp>
#include <penstock/swap/lease.hpp>
#include <penstock/swap/runtime_options.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/tiers/store/ledger.hpp>
#include <penstock/tiers/store/tensor.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::tiers {
class BlockTable;
}

namespace penstock::swap {

struct Move;

/// Tensors in host memory and swap files: store, budget, paths and threads of one rank.
///
///     auto runtime = swap::Runtime::create({.host_budget = 1_GiB, .paths = {{.directory = "/mnt/nvme0",
///                                                                            .capacity = 8_GiB}}}).value();
///     auto tensor = runtime->add({.name = "layer0", .key = {.unit = 0}, .size = 64_MiB}, /*on_disk=*/true).value();
///     auto lease = runtime->acquire(tensor, swap::Access::overwrite).value();   // bytes in host memory
///     fill(lease.bytes());
///     lease.end();                            // evicted to the swap file when its room is needed
///
/// One *mover* advances the transfers: a thread of its own or, with an idle handler, the thread that waits. Each
/// path has a driver thread beside it. Engines attach to a runtime and are destroyed before it.
///
/// A write-behind that fails on one path goes to another one that has room. Where there is none it leaves its tensor
/// dirty in memory, and its error is returned once, by the next call of acquire, flush, wait_until or check_stores.
/// That call may then be made again; the tensor is stored again from there on. Until then, requests that need room
/// wait.
///
/// Safe from any thread. acquire(), remove(), flush() and the calls named wait block.
class Runtime {
 public:
  /// Errors: no_space and permission, of the host memory; invalid_argument, not_found, permission, no_space and
  /// unsupported, of a path, naming the directory.
  [[nodiscard]] static Result<std::unique_ptr<Runtime>> create(RuntimeOptions options);
  /// Waits for what is in flight, then stops the threads. No lease lives any more.
  ~Runtime();

  /// Adds a tensor. `on_disk` gives it an extent, allocated from the paths in proportion to their weights; one that is
  /// to stay in memory has its range there from now on.
  ///
  /// Errors: already_exists, for a key that another tensor has; invalid_argument, for a size or a block of zero;
  /// no_space, when no path has room (wanted, free); budget_too_small, when host memory has none.
  [[nodiscard]] Result<tiers::TensorId> add(tiers::TensorDescription description, bool on_disk);
  /// Removes the tensor, its memory and its extent, once nothing of it is in flight. Unleased, with no request open.
  void remove(tiers::TensorId tensor);

  /// Blocks until the lease is granted.
  ///
  /// Errors: budget_too_small, when nothing in flight could free the room, naming every holder; invalid_argument, for
  /// reading what was never written; corrupted, truncated, io, deadline_exceeded, of the load; that of a failed
  /// write-behind.
  [[nodiscard]] Result<Lease> acquire(tiers::TensorId tensor, Access access, Use use = Use::recorded);
  /// Asks for a lease and returns at once.
  [[nodiscard]] PendingLease request(tiers::TensorId tensor, Access access, Use use = Use::recorded);
  /// Records a use now whose lease is asked for later, by PendingLease::ask(). Until then the tensor counts as the
  /// next one used.
  [[nodiscard]] PendingLease announce(tiers::TensorId tensor, Access access);

  /// The round of uses ends, and the next one begins: the trace of one round is the forecast of the next.
  void end_round();
  /// Loads the tensor early, when there is room that nothing used sooner needs.
  void prefetch(tiers::TensorId tensor);
  /// Gives up the contents, in memory and on disk. Unleased.
  void discard(tiers::TensorId tensor);

  /// Waits until at most `count` write-behinds are on their way. The error of a failed one goes to the next request.
  void wait_for_stores(std::size_t count);
  /// Waits until every write-behind has reached its extent. Errors: the first that failed.
  Result<void> flush();
  /// Whether every write-behind that has ended has succeeded. Errors: the first that failed, once.
  Result<void> check_stores();

  /// The extent that holds the contents of `tensor` keeps them until release_generation(generation): the next store
  /// goes elsewhere. Several generations may pin one extent.
  ///
  /// Errors: invalid_argument, when the newest contents are not in an extent: call flush() first.
  Result<void> pin_extent(tiers::TensorId tensor, std::uint64_t generation);
  /// Frees the extents that only `generation` pinned and that no tensor uses any more.
  void release_generation(std::uint64_t generation);

  /// What has happened to the paths since the last call and was not returned as an error, a line each: stores that
  /// went elsewhere, paths retired and evacuated.
  [[nodiscard]] std::vector<std::string> take_messages();

  /// A block does not verify, where the caller verifies in a pass of its own: the error to return.
  [[nodiscard]] Error corrupted(tiers::TensorId tensor, std::size_t block);
  /// The checksums of a tensor, for such a pass. They stay where they are until it is removed.
  [[nodiscard]] tiers::BlockTable& blocks(tiers::TensorId tensor);

  /// Hands a move of the caller's to the mover.
  void start(Move move);
  /// Makes the mover look at its moves again. Safe from any thread, and from an executor's.
  void wake() noexcept;

  /// Blocks until `done()` is true; it is evaluated with the runtime's lock held. Errors: of a failed write-behind,
  /// when `done()` is not true yet.
  Result<void> wait_until(const std::function<bool()>& done);
  /// The same, whatever becomes of write-behinds.
  void wait_ignoring_stores(const std::function<bool()>& done);
  /// Whether a write-behind has failed whose error was not returned yet. For predicates: with the lock held.
  [[nodiscard]] bool store_failed() const;
  /// Blocks until the event's last record has been passed.
  Result<void> wait_for(const tiers::Event& event);
  /// One turn of the mover, for an idle handler: true when something moved.
  bool poll();
  /// When a request in flight passes its deadline, so that poll() must be called then; forever when none is. For an
  /// idle handler that lets simulated time pass.
  [[nodiscard]] TimePoint next_deadline() const;

  // What there is.
  [[nodiscard]] std::vector<tiers::TensorId> tensors() const;
  [[nodiscard]] tiers::TensorDescription describe(tiers::TensorId tensor) const;
  [[nodiscard]] std::string name(tiers::TensorId tensor) const;
  /// Whether host memory holds a copy, or one is being loaded.
  [[nodiscard]] bool in_memory(tiers::TensorId tensor) const;
  [[nodiscard]] std::vector<tiers::TensorId> tensors_on_path(std::uint32_t path) const;
  [[nodiscard]] ByteCount host_free() const;
  /// The host memory of this rank, to be registered with a device.
  [[nodiscard]] HostSpan host_memory() const;
  [[nodiscard]] tiers::Ledger& ledger();
  [[nodiscard]] std::vector<PathReport> paths() const;
  [[nodiscard]] Executor& executor();
  /// What was asked for and could not be had, a line each.
  [[nodiscard]] std::vector<std::string> notes() const;
  /// The time that callers of acquire() and of the waits for bytes have spent waiting.
  [[nodiscard]] TimePoint stall_time() const;

 private:
  friend class Lease;
  friend class PendingLease;
  struct State;
  explicit Runtime(std::unique_ptr<State> state);
  [[nodiscard]] RequestId ask(tiers::TensorId tensor, Access access, Use use, bool announced);
  [[nodiscard]] std::optional<Result<Lease>> take(RequestId id, tiers::TensorId tensor, Access access);
  void cancel(std::optional<RequestId> id, tiers::TensorId tensor, Access access) noexcept;
  void end_lease(tiers::TensorId tensor, Access access) noexcept;

  std::unique_ptr<State> state_;
};

}  // namespace penstock::swap
