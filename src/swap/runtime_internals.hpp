#pragma once

#include "swap/timeline.hpp"
#include "swap/transfer/transfer_engine.hpp"
#include "tiers/store/block_table.hpp"
#include "tiers/store/memory_budget.hpp"

#include <penstock/base/executor.hpp>
#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/device/device.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace penstock::swap {

/// Generations from here on are those of engines, whose pins a user cannot end.
constexpr std::uint64_t engine_generations = std::uint64_t{1} << 63;

/// The calls of a Runtime that only an engine of this library makes: its own moves, waits, and checksums that it
/// verifies itself. A view; the runtime outlives it.
///
///     RuntimeInternals internals(runtime);
///     internals.start(std::move(move));
///     PENSTOCK_TRY(internals.wait_until([&] { return progress.done; }));
///
/// Safe from any thread. The calls named wait block.
class RuntimeInternals {
 public:
  explicit RuntimeInternals(Runtime& runtime);

  /// As Runtime::add(), of a tensor that is the engine's: only these calls use it.
  [[nodiscard]] Result<tiers::TensorId> add(tiers::TensorDescription description, bool on_disk) const;
  // As the calls of Runtime, also for tensors of an engine.
  Result<void> remove(tiers::TensorId tensor) const;
  [[nodiscard]] Result<Lease> acquire(tiers::TensorId tensor, Access access, Use use = Use::recorded) const;
  [[nodiscard]] PendingLease request(tiers::TensorId tensor, Access access, Use use = Use::recorded) const;
  [[nodiscard]] PendingLease announce(tiers::TensorId tensor, Access access) const;
  Result<void> discard(tiers::TensorId tensor) const;
  /// What a manifest says of a tensor.
  struct PinnedTensor {
    tiers::TensorDescription description;
    std::uint64_t step = 0;
    std::vector<std::uint64_t> checksums;  ///< of its blocks
  };
  /// As Runtime::pin_extent(); waits for a store in flight, which sets the checksums. Returns what was pinned: the
  /// evacuation of its path may move the tensor afterwards.
  [[nodiscard]] Result<PinnedTensor> pin_extent(tiers::TensorId tensor, std::uint64_t generation) const;
  void release_generation(std::uint64_t generation) const;

  /// For a tensor that is sealed_in_pass, whose blocks the caller verifies: counts a block that does not match its
  /// checksum as a fault of its path. Returns the error, for the caller to return.
  [[nodiscard]] Error corrupted(tiers::TensorId tensor, std::size_t block) const;
  /// The checksums of a tensor that is sealed_in_pass. The reference is valid until remove().
  [[nodiscard]] tiers::BlockTable& blocks(tiers::TensorId tensor) const;

  /// Stores a tensor that is TensorDescription::stored_from_outside from `bytes`, which are aligned as those of direct
  /// I/O and readable up to the length of its extent. They stay unchanged until the store is complete, or has failed
  /// and the tensor is discarded: see Runtime::flush(). Precondition: no earlier one is in flight, or has failed and
  /// was not discarded.
  void store_from(tiers::TensorId tensor, HostSpan bytes) const;
  /// Starts `move`. The mover runs it.
  void start(Move move) const;
  /// Requests a lease that the mover takes.
  [[nodiscard]] PendingLease request_for_mover(tiers::TensorId tensor, Access access,
                                               Use use = Use::recorded) const;
  /// A lease that PendingLease::ask() requests, which records its use. Until then the runtime does not know of it.
  [[nodiscard]] PendingLease request_later(tiers::TensorId tensor, Access access) const;
  /// Flushes the swap files of these paths. Blocks. Errors: see Runtime::sync().
  Result<void> sync_files(const std::set<std::uint32_t>& paths) const;
  /// Write-behinds that are not stored yet.
  [[nodiscard]] std::size_t stores_pending() const;
  /// Blocks until write-behinds are stored: Runtime::flush(), but for what has its home in memory. Errors: the same.
  Result<void> finish_stores() const;
  /// Begins to store those of `tensors`, which have places on disk, that have changed since they were stored. Returns
  /// their bytes.
  std::map<tiers::Purpose, ByteCount> begin_stores(std::span<const tiers::TensorId> tensors) const;
  /// Blocks until these have ended, and write-behinds too.
  ///
  /// Errors: the first one of `tensors`, which stay in memory; of those at home only the calls return it that have
  /// begun to store them. Else those of finish_stores().
  Result<void> end_stores(std::span<const tiers::TensorId> tensors) const;
  /// Ranges of the memory that no tensor uses.
  struct Vacated {
    std::vector<tiers::TensorId> tensors;
    std::vector<tiers::Reservation> reservations;
    std::vector<HostSpan> ranges;
  };
  /// Drops the copies of `tensors` that are stored and not leased. Until reuse() their ranges stay reserved, they are
  /// not loaded ahead, and Runtime::limit_memory() is refused.
  [[nodiscard]] Vacated vacate(std::span<const tiers::TensorId> tensors) const;
  void reuse(Vacated vacated) const;
  /// Runtime::limit_memory() for what is left to others, beside the caller's: the lower one of the two applies.
  [[nodiscard]] static Result<ByteCount> limit_memory(Runtime& runtime, ByteCount most);
  /// The one that applies; all of Runtime::host_memory(), if none does.
  [[nodiscard]] ByteCount memory_limit() const;
  /// Whether one applies, so that some tensors do not have their home there.
  [[nodiscard]] bool memory_is_limited() const;
  /// Runtime::paths(), with what is not stored yet as if it were written.
  [[nodiscard]] std::vector<PathReport> paths_when_stored() const;
  /// As Runtime::prefetch(), of a tensor that is used before all uses that the trace predicts.
  ///
  /// Errors: invalid_argument, for a tensor that this runtime does not have.
  Result<void> prefetch_next(tiers::TensorId tensor) const;
  /// Makes the mover poll its moves. Safe from any thread, including executor threads.
  void wake() const noexcept;
  [[nodiscard]] Executor& executor() const;
  /// Whether the runtime has threads of its own: it has no idle handler.
  [[nodiscard]] bool has_threads() const;
  /// Adds a line to what Runtime::take_messages() returns next.
  void add_message(std::string message) const;
  /// Null: nothing is written.
  [[nodiscard]] Timeline* timeline() const;
  /// Threads that wait in Runtime::acquire().
  [[nodiscard]] std::uint32_t threads_waiting() const;

  /// Adds a user. `check` gets all users, the new one last, and returns the least host memory beside what stays there
  /// with which all make progress; its error is returned, and nothing has changed.
  ///
  /// Errors: failed_state, while the memory is limited.
  Result<void> add_user(const RuntimeUse& use,
                        const std::function<Result<ByteCount>(std::span<const RuntimeUse>)>& check) const;
  void remove_user(std::uint32_t owner) const;
  /// The bytes of host memory, and of swap files, that users share.
  [[nodiscard]] ByteCount host_capacity() const;
  [[nodiscard]] ByteCount swap_capacity() const;
  /// Registers the host memory with `device`, the only one of this runtime, until unpin(). Users that share the runtime
  /// register it once; while any of them has given back memory, it is registered when all have taken it back.
  ///
  /// Errors: those of Device::pin().
  Result<void> pin(tiers::Device& device) const;
  void unpin(tiers::Device& device) const;

  /// The address range of a tensor that is only in memory; its size is a multiple of 4096 bytes.
  [[nodiscard]] HostSpan kept_range(tiers::TensorId tensor) const;
  /// Why give_back_memory() would give nothing back; empty if it would.
  [[nodiscard]] std::string keeps_memory() const;
  /// Pages that a user has given back to the operating system.
  struct GivenBack {
    std::vector<HostSpan> ranges;  ///< none: nothing was given back
    ByteCount bytes;               ///< of them, which the kernel has taken
    std::string reason;            ///< why these are fewer than were asked for; else empty
  };
  /// Gives the whole pages of `ranges` back, until take_back_memory() or abandon_memory(). Their contents are lost.
  /// Neither a lease nor a transfer uses them from now on, nor an operation of the device, if that has registered the
  /// memory for this user. Blocks until the paths' engines have released the memory.
  [[nodiscard]] GivenBack give_back_memory(std::span<const HostSpan> ranges) const;
  /// Gives more pages back, as part of `memory`, from which some are given back already. Returns what the kernel has
  /// taken.
  ByteCount give_back_more(GivenBack& memory, std::span<const HostSpan> ranges) const;
  /// Makes the pages usable again, with undefined contents, and empties `memory`. Returns what could not be registered
  /// again, in one line; else nothing.
  ///
  /// Errors: no_space: everything is still given back.
  Result<std::string> take_back_memory(GivenBack& memory) const;
  /// The same of the pages that begin before `end`; `memory` keeps the others.
  Result<std::string> take_back_memory(GivenBack& memory, const std::byte* end) const;
  /// Why limit_memory() gives no pages back; empty if it does. With separate memory a device copies from and to
  /// registered pages at any time.
  [[nodiscard]] std::string cannot_limit() const;
  /// The tensors in these pages are going to be removed. If the runtime has other users, now or later, the pages are
  /// taken back for them as far as there is memory; what is allocated in others gets new pages when it is written.
  void abandon_memory(GivenBack memory) const;
  /// With an idle handler: a runtime of the same thread that poll() polls too, until leave().
  void accompany(Runtime& companion) const;
  void leave(Runtime& companion) const;
  /// The options of the runtime, with those of its paths that are in use, as they were opened.
  [[nodiscard]] RuntimeOptions options() const;

  /// Blocks until `done()`, which is evaluated with the runtime's lock held, returns true. It must not call the
  /// runtime.
  /// Errors: that of a failed write-behind, if `done()` is still false.
  Result<void> wait_until(const std::function<bool()>& done, StallCause cause = StallCause::other) const;
  /// The same, but does not return errors of write-behinds.
  void wait_ignoring_stores(const std::function<bool()>& done, StallCause cause = StallCause::other) const;
  /// Whether the error of a failed write-behind is still to be returned. Called with the lock held, by the predicate of
  /// wait_until().
  [[nodiscard]] bool store_failed() const;
  /// Blocks until the stream has passed the last record of `event`; `work` is what it stands for, in messages.
  ///
  /// Errors: those of the device; deadline_exceeded, except with an idle handler.
  Result<void> wait_for(const tiers::Event& event, const char* work, TimePoint deadline) const;

 private:
  // With memory_mutex.
  [[nodiscard]] bool register_with_paths(HostSpan memory) const;
  [[nodiscard]] std::string register_if_complete() const;
  void take_back_abandoned() const;
  [[nodiscard]] std::size_t user_count() const;

  Runtime& runtime_;
  RuntimeState& state_;
};

}  // namespace penstock::swap
