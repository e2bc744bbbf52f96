#include "zero/comm/collective_hops.hpp"

#include "base/abandon.hpp"

#include <algorithm>

namespace penstock::zero {

using swap::HopState;

Result<HopState> OrderedHop::poll() {
  if (!error_ && !continues_after_failure()) error_ = order_.failure();
  if (!error_) {
    auto state = advance();
    if (state) return state;
    error_ = state.error();
    if (error_->code() != ErrorCode::interrupted) {
      if (const std::string names = flats(); !names.empty()) {
        error_ =
            Error(*error_).note("flats   " + names + ", on rank " + std::to_string(communicator_.rank()));
      }
      communicator_.abort(*error_);
    }
    order_.fail(*error_);
  }
  if (copies_in_flight()) return HopState::pending;
  return *error_;
}

namespace {

class GatherHop final : public CollectiveHop {
 public:
  GatherHop(const CollectiveContext& context, GatherTarget target, swap::PendingLease shard)
      : CollectiveHop(context, Transfer::Kind::all_gather, target.signature),
        target_(std::move(target)),
        pending_(std::move(shard)) {}
  ~GatherHop() override {
    if (context_.copied_in.hangs() || copy_ == Copy::unknown) abandon(std::move(shard_));
  }
  bool is_blocked() const override {
    return phase_ == Phase::lease || (phase_ == Phase::order && !shard_.held() && !is_head());
  }
  TimePoint poll_interval() const override {
    const TimePoint copied = shard_.held() ? context_.copied_in.next_query() : forever;
    return phase_ == Phase::gather ? std::min(copied, communicator_.poll_interval()) : copied;
  }

 private:
  enum class Phase : std::uint8_t { lease, order, gather, finish };
  /// unknown: perhaps enqueued, and when it ends cannot be told.
  enum class Copy : std::uint8_t { none, enqueued, unknown };

  Result<HopState> advance() override {
    PENSTOCK_TRY(end_lease_once_copied());
    switch (phase_) {
      case Phase::lease: {
        if (!*target_.updated) return HopState::pending;
        if (target_.kept_shard.empty()) {
          pending_.ask();
          auto lease = pending_.poll();
          if (!lease) return HopState::pending;
          if (!*lease) return lease->error();
          shard_ = std::move(**lease);
        }
        PENSTOCK_TRY(copy_in());
        phase_ = Phase::order;
        [[fallthrough]];
      }
      case Phase::order:
        if (!is_head()) return HopState::pending;
        PENSTOCK_TRY(context_.communication.wait(*in_slot_));
        begin_on_stream("gather ", target_.name);
        PENSTOCK_TRY(communicator_.start_all_gather(context_.communication, target_.flat, target_.signature));
        phase_ = Phase::gather;
        [[fallthrough]];
      case Phase::gather: {
        PENSTOCK_TRY_ASSIGN(auto gathered, communicator_.poll());
        if (!gathered) return HopState::pending;
        end_on_stream("gather ", target_.name, target_.flat.size());
        PENSTOCK_TRY(context_.communication.record(*target_.gathered));
        pop();
        phase_ = Phase::finish;
        [[fallthrough]];
      }
      case Phase::finish: return shard_.held() ? HopState::ordered : HopState::done;
    }
    return HopState::pending;
  }

  [[nodiscard]] std::string flats() const override { return target_.name; }

  [[nodiscard]] bool copies_in_flight() const override {
    if (!shard_.held() || copy_ != Copy::enqueued) return false;
    const auto copied = context_.copied_in.has_passed(copied_);
    return copied && !*copied;  // after an error of the device nothing is in flight
  }

  /// The lease ends here and not after the all-gather. Otherwise a gather that waits for its turn could hold the memory
  /// that the gather at the head needs.
  Result<void> end_lease_once_copied() {
    if (!shard_.held() || copy_ != Copy::enqueued) return ok();
    PENSTOCK_TRY_ASSIGN(const bool copied, context_.copied_in.has_passed(copied_));
    if (copied) shard_.end();
    return ok();
  }

  Result<void> copy_in() {
    for (const auto& fence : target_.writable) PENSTOCK_TRY(context_.copy_in.wait(*fence));
    target_.writable.clear();
    if (!target_.kept_shard.empty()) {
      const StreamHandle stream = context_.copy_in.handle();
      PENSTOCK_TRY(context_.device.copy_on_device(stream, target_.kept_shard, target_.slot.bytes));
      PENSTOCK_TRY_ASSIGN(in_slot_, context_.events.record(context_.copy_in));
      return ok();
    }
    const auto copied =
        context_.device.copy_to_device(context_.copy_in.handle(), shard_.bytes(), target_.slot.bytes);
    // Also after an error: a part of the copy may be enqueued.
    copy_ = Copy::unknown;
    PENSTOCK_TRY_ASSIGN(copied_, context_.copied_in.record(context_.copy_in, context_.events,
                                                           shard_.bytes().size(), target_.name));
    copy_ = Copy::enqueued;
    in_slot_ = copied_.fence();
    return copied;
  }

  GatherTarget target_;
  swap::PendingLease pending_;
  swap::Lease shard_;
  tiers::StreamProgress::Point copied_;  // of a leased shard
  tiers::Fence in_slot_;
  Phase phase_ = Phase::lease;
  Copy copy_ = Copy::none;
};

class ReduceScatterHop final : public CollectiveHop {
 public:
  ReduceScatterHop(const CollectiveContext& context, std::shared_ptr<GradientBucket> bucket)
      : CollectiveHop(context, kind_of(context.reduction), bucket->signature), bucket_(std::move(bucket)) {}
  bool is_blocked() const override { return !bucket_->started && !is_head(); }
  TimePoint poll_interval() const override {
    return bucket_->started ? communicator_.poll_interval() : forever;
  }

 private:
  [[nodiscard]] std::string flats() const override { return bucket_->names; }
  Result<HopState> advance() override {
    if (!is_head()) return HopState::pending;
    if (!bucket_->started) {
      for (const tiers::Event* const written : bucket_->written)
        PENSTOCK_TRY(context_.communication.wait(*written));
      begin_on_stream("reduce ", bucket_->names);
      PENSTOCK_TRY(communicator_.start_reduce_scatter(context_.communication, bucket_->flats,
                                                      context_.reduction, bucket_->signature));
      bucket_->started = true;
    }
    PENSTOCK_TRY_ASSIGN(auto summed, communicator_.poll());
    if (!summed) return HopState::pending;
    ByteCount bytes;
    for (const DeviceTensor& flat : bucket_->flats) bytes += flat.bytes.size();
    end_on_stream("reduce ", bucket_->names, bytes);
    for (tiers::Event* const reduced : bucket_->reduced)
      PENSTOCK_TRY(context_.communication.record(*reduced));
    pop();
    bucket_->done = true;
    return HopState::done;
  }

  const std::shared_ptr<GradientBucket> bucket_;
};

class ReducedTogetherHop final : public OrderedHop {
 public:
  ReducedTogetherHop(const CollectiveContext& context, std::shared_ptr<const GradientBucket> bucket)
      : OrderedHop(context.communicator, context.order), bucket_(std::move(bucket)) {}
  bool is_blocked() const override { return !bucket_->started; }

 private:
  [[nodiscard]] bool continues_after_failure() const override { return bucket_->done; }
  Result<HopState> advance() override { return bucket_->done ? HopState::done : HopState::pending; }

  const std::shared_ptr<const GradientBucket> bucket_;
};

/// A collective that uses no stream, or only its waits.
class ImmediateHop final : public CollectiveHop {
 public:
  using Start = std::function<Result<void>(const CollectiveContext&)>;
  ImmediateHop(const CollectiveContext& context, Start start_collective)
      : CollectiveHop(context), start_collective_(std::move(start_collective)) {}
  ImmediateHop(const CollectiveContext& context, Transfer::Kind kind, const CollectiveSignature& signature,
               Start start_collective)
      : CollectiveHop(context, kind, signature), start_collective_(std::move(start_collective)) {}
  bool is_blocked() const override { return !is_head(); }
  TimePoint poll_interval() const override { return started_ ? communicator_.poll_interval() : forever; }

 private:
  Result<HopState> advance() override {
    if (!is_head()) return HopState::pending;
    if (!started_) {
      PENSTOCK_TRY(start_collective_(context_));
      started_ = true;
    }
    PENSTOCK_TRY_ASSIGN(auto completed, communicator_.poll());
    if (!completed) return HopState::pending;
    pop();
    return HopState::done;
  }

  const Start start_collective_;
  bool started_ = false;
};

}  // namespace

std::unique_ptr<swap::Hop> make_gather_hop(const CollectiveContext& context, GatherTarget target,
                                           swap::PendingLease shard) {
  return std::make_unique<GatherHop>(context, std::move(target), std::move(shard));
}

std::unique_ptr<swap::Hop> make_reduce_scatter_hop(const CollectiveContext& context,
                                                   std::shared_ptr<GradientBucket> bucket) {
  return std::make_unique<ReduceScatterHop>(context, std::move(bucket));
}

std::unique_ptr<swap::Hop> make_reduced_together_hop(const CollectiveContext& context,
                                                     std::shared_ptr<const GradientBucket> bucket) {
  return std::make_unique<ReducedTogetherHop>(context, std::move(bucket));
}

std::unique_ptr<swap::Hop> make_exchange_hop(const CollectiveContext& context, ConstHostSpan mine,
                                             HostSpan all, const CollectiveSignature& signature) {
  return std::make_unique<ImmediateHop>(context, Transfer::Kind::exchange, signature,
                                        [mine, all, signature](const CollectiveContext& with) {
                                          return with.communicator.start_exchange(mine, all, signature);
                                        });
}

std::unique_ptr<swap::Hop> make_recovery_hop(const CollectiveContext& context) {
  return std::make_unique<ImmediateHop>(context, [](const CollectiveContext& with) {
    return with.communicator.start_recovery(with.communication);
  });
}

}  // namespace penstock::zero
