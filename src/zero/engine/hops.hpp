#pragma once

#include "zero/engine/flat_state.hpp"

#include <penstock/base/compute.hpp>
#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/zero/comm/communicator.hpp>
#include "swap/transfer/transfer_engine.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

namespace penstock::zero {

/// One order of a rank's hops: numbers are drawn at program points, which all ranks share, and a hop goes on
/// when its number is up. Nothing overtakes the head.
class TurnOrder {
 public:
  /// The trainer's thread.
  [[nodiscard]] std::uint64_t draw() { return drawn_++; }
  /// The mover's: whether it is `number`'s turn, and the end of that turn.
  [[nodiscard]] bool is_turn_of(std::uint64_t number) const { return turn_.load() == number; }
  void pass() { turn_.fetch_add(1); }

  /// A hop failed, so no turn comes any more: those that wait for theirs fail too, with the first cause.
  void break_off(const Error& cause) {
    const std::lock_guard lock(mutex_);
    if (!cause_) cause_ = cause;
  }
  [[nodiscard]] std::optional<Error> broken() const {
    const std::lock_guard lock(mutex_);
    return cause_;
  }

 private:
  std::uint64_t drawn_ = 0;
  std::atomic<std::uint64_t> turn_{0};
  mutable std::mutex mutex_;
  std::optional<Error> cause_;
};

/// What the hops of one engine share. The streams belong to the mover.
struct HopContext {
  swap::Runtime& runtime;
  tiers::Device& device;
  Communicator& communicator;
  TurnOrder& order;     ///< of the collectives
  TurnOrder& landings;  ///< of the leases that gradients land in: one at a time holds some and waits for more
  tiers::Stream& copy_in;
  tiers::Stream& copy_out;
  tiers::Stream& communication;
  const tiers::Event& compute_progress;  ///< past this, ranges that were released are free to be written
};

/// Host copy of the shard → slot of the gathered flat → all-gather in place. `ordered` once
/// gathered_event can be waited for, `done` once the shard's host copy is at rest.
[[nodiscard]] std::unique_ptr<swap::Hop> make_gather_hop(const HopContext& context, FlatState& flat,
                                                         swap::PendingLease shard_lease);

/// How a reduced gradient lands.
struct Landing {
  bool straight = false;  ///< copied into the accumulator; else added to it
  DType accumulator_dtype = DType::bf16;
  bool first = true, last = true;  ///< micro-batch of the step
};

/// Reduce-scatter of the full gradient → this rank's slot to host memory → added to the accumulator by a
/// worker, which also sums squares after the last micro-batch.
[[nodiscard]] std::unique_ptr<swap::Hop> make_reduce_hop(const HopContext& context, FlatState& flat,
                                                         const Landing& landing);

/// Exchanges a few bytes of host memory; both stay alive until it is done.
[[nodiscard]] std::unique_ptr<swap::Hop> make_exchange_hop(const HopContext& context, ConstHostSpan mine,
                                                           HostSpan all);

}  // namespace penstock::zero
