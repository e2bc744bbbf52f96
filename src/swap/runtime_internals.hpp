#pragma once

#include "swap/transfer/transfer_engine.hpp"
#include "tiers/store/block_table.hpp"

#include <penstock/base/executor.hpp>
#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/device/device.hpp>

#include <cstdint>
#include <functional>
#include <span>

namespace penstock::swap {

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

  /// For a tensor that is sealed_in_pass, whose blocks the caller verifies: counts a block that does not match its
  /// checksum as a fault of its path. Returns the error, for the caller to return.
  [[nodiscard]] Error corrupted(tiers::TensorId tensor, std::size_t block) const;
  /// The checksums of a tensor that is sealed_in_pass. The reference is valid until remove().
  [[nodiscard]] tiers::BlockTable& blocks(tiers::TensorId tensor) const;

  /// Starts `move`. The mover runs it.
  void start(Move move) const;
  /// Requests a lease that the mover takes.
  [[nodiscard]] PendingLease request_for_mover(tiers::TensorId tensor, Access access,
                                               Use use = Use::recorded) const;
  /// Write-behinds that are not stored yet.
  [[nodiscard]] std::size_t stores_pending() const;
  /// Makes the mover poll its moves. Safe from any thread, including executor threads.
  void wake() const noexcept;
  [[nodiscard]] Executor& executor() const;
  /// Whether the runtime has threads of its own: it has no idle handler.
  [[nodiscard]] bool has_threads() const;
  /// Threads that wait in Runtime::acquire().
  [[nodiscard]] std::uint32_t threads_waiting() const;

  /// Adds a user. `check` gets all users, the new one last; its error is returned, and nothing has changed.
  Result<void> add_user(const RuntimeUse& use,
                        const std::function<Result<void>(std::span<const RuntimeUse>)>& check) const;
  void remove_user(std::uint32_t owner) const;
  /// The bytes of host memory, and of swap files, that users share.
  [[nodiscard]] ByteCount host_capacity() const;
  [[nodiscard]] ByteCount swap_capacity() const;
  /// Pins the host memory for `device`, the only one of this runtime. Users that share the runtime pin it once.
  ///
  /// Errors: those of Device::pin().
  Result<void> pin(tiers::Device& device) const;
  void unpin(tiers::Device& device) const;

  /// Blocks until `done()`, which is evaluated with the runtime's lock held, returns true. It must not call the
  /// runtime.
  /// Errors: that of a failed write-behind, if `done()` is still false.
  Result<void> wait_until(const std::function<bool()>& done) const;
  /// The same, but does not return errors of write-behinds.
  void wait_ignoring_stores(const std::function<bool()>& done) const;
  /// Whether the error of a failed write-behind is still to be returned. Called with the lock held, by the predicate of
  /// wait_until().
  [[nodiscard]] bool store_failed() const;
  /// Blocks until the stream has passed the last record of `event`; `work` is what it stands for, in messages.
  ///
  /// Errors: those of the device; deadline_exceeded, except with an idle handler.
  Result<void> wait_for(const tiers::Event& event, const char* work, TimePoint deadline) const;

 private:
  RuntimeState& state_;
};

}  // namespace penstock::swap
