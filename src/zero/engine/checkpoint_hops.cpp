#include "zero/engine/checkpoint_hops.hpp"

#include "base/abandon.hpp"

#include <optional>

namespace penstock::zero {

using swap::HopState;

namespace {

/// Takes the lease, enqueues the copy, and keeps the lease until the device has passed it. It waits for nothing else
/// while it holds the lease.
class CheckpointHop final : public OrderedHop {
 public:
  enum class Direction : std::uint8_t { to_host, to_device };

  CheckpointHop(EngineContext& context, Direction direction, CheckpointCopy copy, swap::PendingLease lease)
      : OrderedHop(context.communicator, context.collective_order),
        context_(context),
        direction_(direction),
        copy_(std::move(copy)),
        pending_(std::move(lease)) {
    if (direction == Direction::to_device) number_ = context.checkpoint_order.append();
  }
  ~CheckpointHop() override {
    if (progress().hangs() || state_ == State::unknown) abandon(std::move(lease_));
  }
  bool is_blocked() const override { return !lease_.held(); }
  TimePoint poll_interval() const override {
    return state_ == State::enqueued ? progress().next_query() : forever;
  }

 private:
  /// unknown: perhaps enqueued, and when it ends cannot be told.
  enum class State : std::uint8_t { none, enqueued, unknown };

  [[nodiscard]] bool continues_after_failure() const override { return state_ == State::enqueued; }
  [[nodiscard]] bool copies_in_flight() const override {
    if (state_ != State::enqueued) return false;
    const auto copied = progress().has_passed(copied_);
    return copied && !*copied;
  }

  Result<HopState> advance() override {
    if (state_ == State::none) {
      if (number_ && !context_.checkpoint_order.is_head(*number_)) return HopState::pending;
      pending_.ask();
      auto lease = pending_.poll();
      if (!lease) return HopState::pending;
      PENSTOCK_TRY_ASSIGN(lease_, *std::move(lease));
      PENSTOCK_TRY(enqueue());
      if (number_) context_.checkpoint_order.pop();
    }
    PENSTOCK_TRY_ASSIGN(const bool copied, progress().has_passed(copied_));
    if (!copied) return HopState::ordered;
    lease_.end();
    return HopState::done;
  }

  Result<void> enqueue() {
    const bool to_host = direction_ == Direction::to_host;
    tiers::Stream& stream = to_host ? *context_.copy_out : *context_.checkpoint_in;
    for (const tiers::Fence& fence : copy_.after) PENSTOCK_TRY(stream.wait(*fence));
    const HostSpan bytes = lease_.bytes();
    const Result<void> enqueued =
        to_host ? context_.device.copy_to_host(stream.handle(), copy_.slot, bytes)
                : context_.device.copy_to_device(stream.handle(), ConstHostSpan(bytes), copy_.slot);
    // Also after an error: a part of the copy may be enqueued.
    state_ = State::unknown;
    PENSTOCK_TRY_ASSIGN(copied_, progress().record(stream, context_.events, bytes.size(), copy_.name));
    state_ = State::enqueued;
    *copy_.copied = copied_.fence();
    return enqueued;
  }

  [[nodiscard]] tiers::StreamProgress& progress() const {
    return direction_ == Direction::to_host ? context_.copied_out : context_.checkpoints_in;
  }

  EngineContext& context_;
  const Direction direction_;
  const CheckpointCopy copy_;
  swap::PendingLease pending_;
  swap::Lease lease_;
  tiers::StreamProgress::Point copied_;
  State state_ = State::none;
  std::optional<std::uint64_t> number_;  // in the order of checkpoints that come back
};

}  // namespace

std::unique_ptr<swap::Hop> make_checkpoint_store_hop(EngineContext& context, CheckpointCopy copy,
                                                     swap::PendingLease lease) {
  return std::make_unique<CheckpointHop>(context, CheckpointHop::Direction::to_host, std::move(copy),
                                         std::move(lease));
}

std::unique_ptr<swap::Hop> make_checkpoint_load_hop(EngineContext& context, CheckpointCopy copy,
                                                    swap::PendingLease lease) {
  return std::make_unique<CheckpointHop>(context, CheckpointHop::Direction::to_device, std::move(copy),
                                         std::move(lease));
}

}  // namespace penstock::zero
