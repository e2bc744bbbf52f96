#pragma once

#include <penstock/swap/access_trace.hpp>
#include <penstock/swap/lease.hpp>
#include <penstock/swap/runtime_options.hpp>
#include <penstock/tiers/store/ledger.hpp>
#include <penstock/tiers/store/tensor.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::swap {

enum class Caller : std::uint8_t;

/// Keeps the tensors of one rank in host memory and in swap files, and moves them between the two.
///
///     auto runtime = swap::Runtime::create({.host_budget = 1_GiB, .paths = {{.directory = "/mnt/nvme0",
///                                                                            .capacity = 8_GiB}}}).value();
///     auto tensor = runtime->add({.name = "layer0", .key = {.unit = 0}, .size = 64_MiB}, /*on_disk=*/true).value();
///     auto lease = runtime->acquire(tensor, swap::Access::overwrite).value();   // bytes in host memory
///     fill(lease.bytes());
///     lease.end();                            // evicted to the swap file when another tensor needs the room
///
/// One thread, the *mover*, advances the transfers, and each path has its own driver thread. If
/// RuntimeOptions::idle_handler is set, the runtime starts no threads, and each call that waits advances the transfers.
/// Destroy a zero::Engine before the runtime that it uses.
///
/// The tensors that an engine has added are its own: they can be inspected and prefetched, but remove(), acquire(),
/// request(), announce(), discard() and pin_extent() refuse them with invalid_argument. Others may share its runtime.
///
/// A write-behind that fails on one path is repeated on another path that has room. If no other path has room, the
/// tensor stays dirty in memory, and no further request gets room. The next acquire(), flush() or check_stores(), or
/// one that is already waiting, returns the error; after that, requests get room again. It also queues the store again,
/// which fails again until the cause is removed: remove it, then repeat the call.
///
/// Safe from any thread. acquire(), remove(), flush(), wait_for_stores(), park() and unpark() block.
class Runtime {
 public:
  /// Errors: no_space and permission, for the host memory; no_space, for a thread; invalid_argument, not_found,
  /// permission, no_space, unsupported and deadline_exceeded, for a path, with its directory; not_found, permission,
  /// already_exists, in_use and io, for RuntimeOptions::timeline_file.
  [[nodiscard]] static Result<std::unique_ptr<Runtime>> create(RuntimeOptions options);
  /// Waits for the transfers in flight and stops the threads. End all leases first: what was written through a lease
  /// that is still open is lost.
  ~Runtime();

  /// Adds a tensor. With `on_disk` it gets an extent, allocated from the paths in proportion to their weights.
  /// Without, it gets a range of host memory and keeps it until remove(); a transient tensor (see
  /// TensorDescription::transient) has a range only while it is leased.
  ///
  /// Errors: already_exists, for a key that another tensor has; invalid_argument, if `size` or `block` is zero or
  /// `extent` is set; no_space, when no path has room, with the wanted and the free bytes; budget_too_small, when host
  /// memory has no room or is smaller than the tensor.
  [[nodiscard]] Result<tiers::TensorId> add(tiers::TensorDescription description, bool on_disk);
  /// Removes the tensor and frees its memory and its extent; waits for its transfers in flight. From the beginning on
  /// other calls refuse it as one that this runtime does not have.
  ///
  /// Errors: invalid_argument, for a tensor that this runtime does not have, or that has a lease or a pending request.
  Result<void> remove(tiers::TensorId tensor);

  /// Blocks until the lease is granted. The lease belongs to the calling thread: for one that another thread will
  /// end, use request().
  ///
  /// Errors: budget_too_small, naming all leased tensors, when memory has no room and no transfer can free any;
  /// invalid_argument, for a tensor that this runtime does not have or that is read before it was written, and when
  /// the calling thread itself holds a lease of acquire() that excludes this one, or has requested one (a lease of
  /// PendingLease::poll() belongs to no thread: the call waits for its end); corrupted, truncated, io,
  /// deadline_exceeded and failed_state, of the load; the error of a failed write-behind; failed_state, when the
  /// runtime is destroyed meanwhile, and while it is parked.
  [[nodiscard]] Result<Lease> acquire(tiers::TensorId tensor, Access access, Use use = Use::recorded);
  /// Requests a lease and returns at once.
  [[nodiscard]] PendingLease request(tiers::TensorId tensor, Access access, Use use = Use::recorded);
  /// Records a use now; PendingLease::ask() requests the lease later. Until then, eviction and prefetching treat
  /// the tensor as the next one to be used.
  [[nodiscard]] PendingLease announce(tiers::TensorId tensor, Access access);

  /// Ends a round of uses, such as a training step. The order of uses of one round predicts that of the next.
  void end_round();

  /// Begins to record the uses, those with Use::recorded, until end_trace(). What was recorded before is forgotten.
  void begin_trace();
  /// The uses since begin_trace(), whose tensors may have been removed meanwhile. In their names control characters
  /// are shown by their numbers, as "\x1b"; a tensor without a name has its key.
  ///
  /// Errors: failed_state, without begin_trace(); invalid_argument, for a label with a control character, after which
  /// the recording goes on.
  [[nodiscard]] Result<AccessTrace> end_trace(std::string label);
  /// Predicts that the round that begins now, and the next ones, have the uses of `trace`: eviction and prefetch plan
  /// it as if a round like it had ended. The first use is loaded when it is requested, the others ahead. Its tensors
  /// are those of this runtime with their names and sizes, in the order in which they were added where several have
  /// both.
  ///
  /// Errors, after which the prediction is as before: those of check_trace(); invalid_argument, for a tensor that this
  /// runtime does not have, or of another size.
  Result<void> predict(const AccessTrace& trace);

  /// Hints that the tensor is used soon. Loads it once host memory has room for it and for all absent tensors whose
  /// predicted use is earlier. To make room, evicts clean copies whose predicted use is later; for a
  /// tensor that leaves memory after its use it first waits for stores of others that do. If the tensor has no
  /// predicted use (see end_round()), evicts only clean copies that have none either. A request that waits for room
  /// cancels the hint.
  ///
  /// Errors: invalid_argument, for a tensor that this runtime does not have.
  Result<void> prefetch(tiers::TensorId tensor);
  /// Discards the contents, in memory and on disk. Errors: as for remove().
  Result<void> discard(tiers::TensorId tensor);

  /// Waits until at most `count` write-behinds are pending. The next acquire() returns the error of a failed one.
  void wait_for_stores(std::size_t count);
  /// Waits until every write-behind is stored in its extent, and writes the timeline as far as it is. Errors: that of
  /// the first write-behind that failed; take_messages() says where the timeline has ended.
  Result<void> flush();
  /// Returns the error of the first write-behind that failed, once; does not wait.
  Result<void> check_stores();

  /// The same, and makes the bytes of all extents durable: they are there after a power cut.
  ///
  /// Errors: those of flush(); io, of a swap file whose writes may be lost: its path is out of use then, and what is on
  /// it is stored elsewhere.
  Result<void> sync();

  /// Stores what is only in memory, and gives the host memory back to the operating system, so that another program
  /// can use it. Until unpark(), no tensor can be leased, and hints to prefetch wait. Returns what the operating system
  /// has got; take_messages() says why that is less than the budget.
  ///
  /// Errors, after which all is as before: failed_state, when it is parked or its memory is limited, or an engine uses
  /// it (zero::Engine::park() parks what an engine has); unsupported, for a runtime with a tensor that stays in memory,
  /// which it names; budget_too_small, naming the tensors that are leased; those of flush().
  [[nodiscard]] Result<ByteCount> park();
  /// Takes the memory again, for the call of any thread. Tensors are loaded when they are used.
  ///
  /// Errors: failed_state, when it is not parked; no_space, after which the call can be repeated.
  Result<void> unpark();
  [[nodiscard]] bool parked() const;

  /// From now on tensors use the first `most` bytes of the host memory, as soon as they can: copies beyond leave, and
  /// the operating system gets whole pages of 2 MiB. What is leased or not stored yet is given back by a later call,
  /// and the first call waits for transfers in flight. Returns the bytes that the operating system has not got. More
  /// than the budget stands for all of it; raising the limit takes the memory again. While pages are given back, no
  /// memory is registered with I/O engines, whose transfers then take more time. Where a zero::Rank leaves a reserve to
  /// others (penstock.memory_reserve), it has a limit of its own, and the lower one of the two applies.
  ///
  /// Errors, after which all is as before: budget_too_small, with the least possible, for what stays in memory and the
  /// room that the engines of the runtime, or the largest tensor, need beside it; unsupported, for memory that is
  /// registered with a device; no_space, where the machine has no memory to take; failed_state, while it is parked.
  [[nodiscard]] Result<ByteCount> limit_memory(ByteCount most);
  /// The least that limit_memory() takes now.
  [[nodiscard]] ByteCount memory_least() const;

  /// Keeps the current contents of the extent of `tensor` until release_generation(generation): the next store writes
  /// another extent. Several generations may pin one extent.
  ///
  /// Errors: invalid_argument, when the newest contents are not stored, and for a generation of 2^63 or more, which are
  /// those of engines. flush() stores the contents of tensors that were added with write_behind.
  Result<void> pin_extent(tiers::TensorId tensor, std::uint64_t generation);
  /// Ends the pins of `generation`, below 2^63. Frees the extents that no other generation pins and no tensor uses.
  void release_generation(std::uint64_t generation);

  /// Events since the last call that were not returned as errors, one line each: paths that are not used, stores moved
  /// to another path, paths retired and evacuated, requests that failed and were repeated in parts, memory that park()
  /// has kept, a timeline that has ended; of an engine, drives whose endurance comes to its end, and more memory of the
  /// device than was planned.
  [[nodiscard]] std::vector<std::string> take_messages();

  /// Polls all moves once, for an idle handler. True if any of them advanced.
  bool poll();
  /// The earliest deadline of a request in flight; forever when no request is in flight. An idle handler with simulated
  /// time must call poll() at that time.
  [[nodiscard]] TimePoint next_deadline() const;

  // Inspection.
  [[nodiscard]] std::vector<tiers::TensorId> tensors() const;
  /// The description of the tensor; TensorDescription{} if this runtime does not have it.
  [[nodiscard]] tiers::TensorDescription describe(tiers::TensorId tensor) const;
  [[nodiscard]] std::string name(tiers::TensorId tensor) const;
  /// Whether host memory contains a copy, or a load is in flight.
  [[nodiscard]] bool in_memory(tiers::TensorId tensor) const;
  [[nodiscard]] std::vector<tiers::TensorId> tensors_on_path(std::uint32_t path) const;
  [[nodiscard]] ByteCount host_free() const;
  /// The host memory of this rank, for example to register it with a device.
  [[nodiscard]] HostSpan host_memory() const;
  [[nodiscard]] tiers::Ledger& ledger();
  [[nodiscard]] std::vector<PathReport> paths() const;
  /// Requested options that are not in effect, with reasons, one line each.
  [[nodiscard]] std::vector<std::string> notes() const;
  /// Total time that callers have waited, in this runtime's blocking calls and in those of a zero::Engine: for
  /// transfers, and in an engine's for its device too.
  [[nodiscard]] TimePoint stall_time() const;
  /// The part of it that has this cause.
  [[nodiscard]] TimePoint stall_time(StallCause cause) const;

 private:
  friend class RuntimeInternals;
  explicit Runtime(std::shared_ptr<RuntimeState> state);

  // Of a user, or of an engine for its own tensors.
  [[nodiscard]] Result<tiers::TensorId> add_as(Caller caller, tiers::TensorDescription description,
                                               bool on_disk);
  Result<void> remove_as(Caller caller, tiers::TensorId tensor);
  [[nodiscard]] Result<Lease> acquire_as(Caller caller, tiers::TensorId tensor, Access access, Use use);
  [[nodiscard]] PendingLease request_as(Caller caller, tiers::TensorId tensor, Access access, Use use);
  [[nodiscard]] PendingLease announce_as(Caller caller, tiers::TensorId tensor, Access access);
  Result<void> discard_as(Caller caller, tiers::TensorId tensor);

  struct Parking;
  struct Limited;
  [[nodiscard]] Result<ByteCount> hold_all_memory();
  /// Each of these has a limit of its own: who calls limit_memory(), and what is left to others.
  enum class Limiter : std::uint8_t { caller, reserve };
  [[nodiscard]] Result<ByteCount> limit_memory(Limiter limiter, ByteCount most);

  std::shared_ptr<RuntimeState> state_;  // leases that outlive the runtime share it
  std::unique_ptr<Parking> parking_;     // by the thread that changes RuntimeState::park_state
  std::unique_ptr<Limited> limited_;     // null: limit_memory() has given nothing back
};

}  // namespace penstock::swap
