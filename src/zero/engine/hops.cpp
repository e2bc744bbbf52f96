#include "zero/engine/hops.hpp"

#include <penstock/kernels/host_gradient.hpp>

namespace penstock::zero {

using swap::HopState;

namespace {

/// A hop that takes part in the collective order, and tells its peers when it fails.
class CollectiveHop : public swap::Hop {
 public:
  explicit CollectiveHop(const HopContext& context) : context_(context), number_(context.order.draw()) {}

  Result<void> start() override { return ok(); }
  // Peers, streams and leases are looked at, not heard of.
  bool wakes_the_mover() const override { return false; }

  Result<HopState> poll() final {
    if (const auto cause = context_.order.broken(); cause && !passed_) return *cause;
    auto state = advance();
    if (!state) {
      context_.communicator.abort(state.error());
      context_.order.break_off(state.error());
    }
    return state;
  }

 protected:
  virtual Result<HopState> advance() = 0;
  bool my_turn() const { return context_.order.is_turn_of(number_); }
  void pass() {
    context_.order.pass();
    passed_ = true;
  }

  HopContext context_;

 private:
  std::uint64_t number_;
  bool passed_ = false;
};

class GatherHop final : public CollectiveHop {
 public:
  GatherHop(const HopContext& context, FlatState& flat, swap::PendingLease pending)
      : CollectiveHop(context), flat_(flat), pending_(std::move(pending)) {}
  bool is_blocked() const override {
    return phase_ == Phase::lease || (phase_ == Phase::turn && !lease_.held() && !my_turn());
  }

 private:
  enum class Phase : std::uint8_t { lease, turn, gather, at_rest };

  Result<HopState> advance() override {
    PENSTOCK_TRY(end_lease_once_copied());
    switch (phase_) {
      case Phase::lease: {
        auto lease = pending_.poll();
        if (!lease) return HopState::pending;
        if (!*lease) return lease->error();
        lease_ = std::move(**lease);
        PENSTOCK_TRY(copy_in());
        phase_ = Phase::turn;
        [[fallthrough]];
      }
      case Phase::turn:
        if (!my_turn()) return HopState::pending;
        PENSTOCK_TRY(context_.communication.wait(*flat_.copied));
        PENSTOCK_TRY(context_.communicator.start_all_gather(context_.communication, flat_.gathered.bytes));
        phase_ = Phase::gather;
        [[fallthrough]];
      case Phase::gather: {
        auto enqueued = context_.communicator.enqueued();
        if (!enqueued) return enqueued.error();
        if (!*enqueued) return HopState::pending;
        PENSTOCK_TRY(context_.communication.record(*flat_.gathered_event));
        pass();
        phase_ = Phase::at_rest;
        [[fallthrough]];
      }
      case Phase::at_rest: return lease_.held() ? HopState::ordered : HopState::done;
    }
    return HopState::pending;
  }

  /// Not later: a gather that waits for its turn would keep the room from the one whose turn it is.
  Result<void> end_lease_once_copied() {
    if (!lease_.held()) return ok();
    auto copied = flat_.copied->query();
    if (!copied) return copied.error();
    if (*copied) lease_.end();
    return ok();
  }

  Result<void> copy_in() {
    const ElementCount shard = flat_.layout->shard;
    const DeviceTensor slot = flat_.gathered.slice(shard * context_.communicator.rank(), shard);
    PENSTOCK_TRY(context_.copy_in.wait(context_.compute_progress));
    PENSTOCK_TRY(context_.device.copy_to_device(context_.copy_in.handle(), lease_.bytes(), slot.bytes));
    return context_.copy_in.record(*flat_.copied);
  }

  FlatState& flat_;
  swap::PendingLease pending_;
  swap::Lease lease_;
  Phase phase_ = Phase::lease;
};

class ReduceHop final : public CollectiveHop {
 public:
  ReduceHop(const HopContext& context, FlatState& flat, const Landing& landing)
      : CollectiveHop(context),
        flat_(flat),
        landing_(landing),
        landing_number_(context.landings.draw()),
        pending_accumulator_(context.runtime.announce(flat.gradient, access())) {}
  bool is_blocked() const override {
    return phase_ == Phase::leases || (phase_ == Phase::turn && !my_turn());
  }

 private:
  enum class Phase : std::uint8_t { turn, reduce, leases, copy, work };

  Result<HopState> advance() override {
    switch (phase_) {
      case Phase::turn:
        if (!my_turn()) return HopState::pending;
        PENSTOCK_TRY(context_.communication.wait(*flat_.grad_ready));
        PENSTOCK_TRY(context_.communicator.start_reduce_scatter(context_.communication, flat_.full));
        phase_ = Phase::reduce;
        [[fallthrough]];
      case Phase::reduce: {
        auto enqueued = context_.communicator.enqueued();
        if (!enqueued) return enqueued.error();
        if (!*enqueued) return HopState::pending;
        PENSTOCK_TRY(context_.communication.record(*flat_.reduced));
        pass();
        phase_ = Phase::leases;
        [[fallthrough]];
      }
      case Phase::leases: {
        auto leased = take_leases();
        if (!leased) return leased.error();
        if (!*leased) return HopState::pending;
        PENSTOCK_TRY(copy_out());
        phase_ = Phase::copy;
        [[fallthrough]];
      }
      case Phase::copy: {
        auto landed = flat_.landed_event->query();
        if (!landed) return landed.error();
        if (!*landed) return HopState::pending;
        context_.runtime.executor().post([this] {
          work_ = accumulate();
          worked_.store(true, std::memory_order_release);
        });
        phase_ = Phase::work;
        [[fallthrough]];
      }
      case Phase::work:
        if (!worked_.load(std::memory_order_acquire)) return HopState::pending;
        if (!work_) return work_.error();
        landing_lease_.end();
        accumulator_.end();
        return HopState::done;
    }
    return HopState::pending;
  }

  swap::Access access() const { return landing_.first ? swap::Access::overwrite : swap::Access::modify; }

  Result<bool> take_leases() {
    if (const auto cause = context_.order.broken()) return *cause;
    if (!context_.landings.is_turn_of(landing_number_)) return false;
    if (!requested_) {
      requested_ = true;
      pending_accumulator_.ask();
      if (!landing_.straight) {
        pending_landing_ =
            context_.runtime.request(flat_.landing_tensor, swap::Access::overwrite, swap::Use::unrecorded);
      }
    }
    PENSTOCK_TRY(take(pending_accumulator_, accumulator_));
    PENSTOCK_TRY(take(pending_landing_, landing_lease_));
    if (pending_accumulator_.pending() || pending_landing_.pending()) return false;
    context_.landings.pass();
    return true;
  }

  static Result<void> take(swap::PendingLease& pending, swap::Lease& lease) {
    auto answer = pending.poll();
    if (!answer) return ok();
    if (!*answer) return answer->error();
    lease = std::move(**answer);
    return ok();
  }

  HostSpan incoming() const { return landing_lease_.held() ? landing_lease_.bytes() : accumulator_.bytes(); }

  Result<void> copy_out() {
    const ElementCount shard = flat_.layout->shard;
    const DeviceTensor slot = flat_.full.slice(shard * context_.communicator.rank(), shard);
    PENSTOCK_TRY(context_.copy_out.wait(*flat_.reduced));
    PENSTOCK_TRY(context_.device.copy_to_host(context_.copy_out.handle(), slot.bytes, incoming()));
    return context_.copy_out.record(*flat_.landed_event);
  }

  Result<void> accumulate() {
    if (landing_lease_.held()) {
      PENSTOCK_TRY(kernels::land_gradient(
          {.incoming = incoming(),
           .incoming_dtype = flat_.full.dtype,
           .accumulator = accumulator_.bytes(),
           .accumulator_dtype = landing_.accumulator_dtype},
          landing_.first ? kernels::GradientLanding::overwrite : kernels::GradientLanding::accumulate));
    }
    if (!landing_.last) return ok();
    flat_.square_partials.resize(ceil_divide(flat_.layout->shard.value(), Compute::square_sum_block));
    return kernels::square_sums(accumulator_.bytes(), landing_.accumulator_dtype, flat_.square_partials);
  }

  FlatState& flat_;
  const Landing landing_;
  const std::uint64_t landing_number_;
  bool requested_ = false;
  swap::PendingLease pending_accumulator_, pending_landing_;
  swap::Lease accumulator_, landing_lease_;
  Phase phase_ = Phase::turn;
  Result<void> work_;
  std::atomic<bool> worked_{false};
};

class ExchangeHop final : public CollectiveHop {
 public:
  ExchangeHop(const HopContext& context, ConstHostSpan mine, HostSpan all)
      : CollectiveHop(context), mine_(mine), all_(all) {}
  bool is_blocked() const override { return !my_turn(); }

 private:
  Result<HopState> advance() override {
    if (!my_turn()) return HopState::pending;
    if (!started_) {
      PENSTOCK_TRY(context_.communicator.start_exchange(mine_, all_));
      started_ = true;
    }
    auto enqueued = context_.communicator.enqueued();
    if (!enqueued) return enqueued.error();
    if (!*enqueued) return HopState::pending;
    pass();
    return HopState::done;
  }

  ConstHostSpan mine_;
  HostSpan all_;
  bool started_ = false;
};

}  // namespace

std::unique_ptr<swap::Hop> make_gather_hop(const HopContext& context, FlatState& flat,
                                           swap::PendingLease shard_lease) {
  return std::make_unique<GatherHop>(context, flat, std::move(shard_lease));
}

std::unique_ptr<swap::Hop> make_reduce_hop(const HopContext& context, FlatState& flat,
                                           const Landing& landing) {
  return std::make_unique<ReduceHop>(context, flat, landing);
}

std::unique_ptr<swap::Hop> make_exchange_hop(const HopContext& context, ConstHostSpan mine, HostSpan all) {
  return std::make_unique<ExchangeHop>(context, mine, all);
}

}  // namespace penstock::zero
