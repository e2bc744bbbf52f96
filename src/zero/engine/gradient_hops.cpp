#include "zero/engine/gradient_hops.hpp"

#include "base/abandon.hpp"

#include <cstring>

#include <penstock/base/compute.hpp>
#include "zero/engine/accumulate_shard.hpp"

namespace penstock::zero {

using swap::HopState;

namespace {

/// Where this rank's slot of the reduced gradient is when AccumulateHop runs.
enum class Incoming : std::uint8_t {
  in_place,     ///< the full gradient is the accumulator
  accumulator,  ///< it was copied there
  on_device,    ///< it was added to the accumulator, which is on the device
  full,         ///< in the full gradient, which is in host memory
  buffer,       ///< it was copied to a buffer
};

/// While one is added to its accumulator, the next one is copied. A trainer that is far ahead of its device would else
/// fill the memory with buffers whose gradients do not exist yet.
constexpr std::uint32_t incoming_buffers_max = 2;

Incoming incoming_of(const EngineContext& context, const FlatState& flat, Accumulation how) {
  if (flat.grad.in_place.held()) return Incoming::in_place;
  if (!flat.kept_gradient.empty()) return Incoming::on_device;
  if (context.shares_memory) return Incoming::full;
  const bool same_dtype = context.config.grad_accum_dtype == context.config.dtype;
  return how.first && same_dtype ? Incoming::accumulator : Incoming::buffer;
}

/// Takes the accumulator, and enqueues the copy of this rank's slot of the reduced gradient to host memory, from where
/// AccumulateHop writes or adds it to the accumulator. Enqueues what the device does instead: adding the slot to an
/// accumulator of its own, and the sums of squares of what host memory gets no sum of.
class CopyOutHop final : public OrderedHop {
 public:
  CopyOutHop(EngineContext& context, FlatState& flat, Accumulation how)
      : OrderedHop(context.communicator, context.collective_order),
        context_(context),
        flat_(flat),
        where_(incoming_of(context, flat, how)),
        how_(how) {
    if (!needs_leases()) return;
    number_ = context.accumulation_order.append();
    pending_accumulator_ =
        context.internals.announce(flat.gradient, how.first ? swap::Access::overwrite : swap::Access::modify);
  }

  ~CopyOutHop() override {
    if (asked_ && where_ == Incoming::buffer) --context_.incoming_buffers;
    if (!context_.copied_out.hangs() && copy_ != Copy::unknown) return;
    abandon(std::move(accumulator_));
    abandon(std::move(incoming_));
    context_.abandon_results();
  }
  bool is_blocked() const override { return !leased_; }
  /// Only a hop that has failed is polled after its copy is enqueued.
  TimePoint poll_interval() const override {
    return copy_ == Copy::enqueued ? context_.copied_out.next_query() : forever;
  }

  [[nodiscard]] HostSpan accumulator() const {
    return where_ == Incoming::in_place ? flat_.grad.in_place.bytes() : accumulator_.bytes();
  }
  /// After it host memory has the slot, and the full gradient is not read any more, unless it is in host memory itself.
  [[nodiscard]] const tiers::StreamProgress::Point& copied() const { return copied_; }
  /// Whether the full gradient is read after copied().
  [[nodiscard]] bool reads_full_gradient() const {
    return where_ == Incoming::in_place || where_ == Incoming::full;
  }
  /// Whether workers have nothing to do: the device sums the squares, and the accumulator is complete.
  [[nodiscard]] bool is_all() const {
    const bool accumulated = where_ == Incoming::accumulator || where_ == Incoming::on_device;
    return accumulated && (!how_.last || sums_squares());
  }
  [[nodiscard]] bool sums_squares() const {
    return how_.last && !flat_.grad.partials.empty() &&
           (where_ == Incoming::accumulator || where_ == Incoming::on_device);
  }
  /// The slot; empty if the accumulator has it already.
  [[nodiscard]] HostSpan incoming() const {
    switch (where_) {
      case Incoming::in_place:
      case Incoming::on_device:
      case Incoming::accumulator: break;
      case Incoming::full: return EngineContext::on_host(slot().bytes);
      case Incoming::buffer: return incoming_.bytes();
    }
    return {};
  }

 private:
  /// unknown: perhaps enqueued, and when it ends cannot be told.
  enum class Copy : std::uint8_t { none, enqueued, unknown };

  [[nodiscard]] bool continues_after_failure() const override { return leased_; }
  [[nodiscard]] bool copies_in_flight() const override {
    if (copy_ != Copy::enqueued) return false;
    const auto copied = context_.copied_out.has_passed(copied_);
    return copied && !*copied;
  }

  Result<HopState> advance() override {
    PENSTOCK_TRY(take_leases());
    if (!leased_) return HopState::pending;
    PENSTOCK_TRY(copy_out());
    return HopState::done;
  }

  Result<void> take_leases() {
    if (!needs_leases()) {
      leased_ = true;
      return ok();
    }
    if (!context_.accumulation_order.is_head(number_)) return ok();
    if (!asked_) {
      if (where_ == Incoming::buffer && context_.incoming_buffers == incoming_buffers_max) return ok();
      asked_ = true;
      pending_accumulator_.ask();
      if (where_ == Incoming::buffer) {
        ++context_.incoming_buffers;
        pending_incoming_ = context_.internals.request(flat_.incoming_gradient, swap::Access::overwrite,
                                                       swap::Use::unrecorded);
      }
    }
    PENSTOCK_TRY(take(pending_accumulator_, accumulator_));
    PENSTOCK_TRY(take(pending_incoming_, incoming_));
    if (pending_accumulator_.pending() || pending_incoming_.pending()) return ok();
    context_.accumulation_order.pop();
    leased_ = true;
    return ok();
  }

  static Result<void> take(swap::PendingLease& pending, swap::Lease& lease) {
    auto answer = pending.poll();
    if (!answer) return ok();
    PENSTOCK_TRY_ASSIGN(lease, *std::move(answer));
    return ok();
  }

  [[nodiscard]] DeviceTensor slot() const {
    const ElementCount shard = flat_.layout->shard;
    return flat_.grad.full.slice(shard * communicator_.rank(), shard);
  }

  [[nodiscard]] bool needs_leases() const {
    return where_ != Incoming::in_place && where_ != Incoming::on_device;
  }
  [[nodiscard]] DeviceTensor device_accumulator() const {
    return {flat_.kept_gradient, context_.config.grad_accum_dtype};
  }

  /// What the device does with the slot.
  Result<void> enqueue() {
    const StreamHandle stream = context_.copy_out->handle();
    switch (where_) {
      case Incoming::in_place:
      case Incoming::full: return ok();
      case Incoming::buffer: return context_.device.copy_to_host(stream, slot().bytes, incoming());
      case Incoming::accumulator: {
        PENSTOCK_TRY(sum_squares(slot()));
        return context_.device.copy_to_host(stream, slot().bytes, accumulator());
      }
      case Incoming::on_device: break;
    }
    PENSTOCK_TRY(how_.first ? context_.compute.cast(stream, slot(), device_accumulator())
                            : context_.compute.accumulate(stream, slot(), device_accumulator()));
    return sum_squares(device_accumulator());
  }

  Result<void> sum_squares(DeviceTensor gradient) {
    if (!sums_squares()) return ok();
    const StreamHandle stream = context_.copy_out->handle();
    const DeviceSpan partials = context_.partials.subspan({}, flat_.grad.partials.size());
    PENSTOCK_TRY(context_.compute.square_sums(stream, gradient, partials));
    return context_.device.copy_to_host(stream, partials, flat_.grad.partials);
  }

  Result<void> copy_out() {
    PENSTOCK_TRY(context_.copy_out->wait(*flat_.grad.reduced));
    const Result<void> enqueued = enqueue();
    const bool copies = where_ == Incoming::accumulator || where_ == Incoming::buffer;
    const ByteCount bytes = copies ? slot().bytes.size() : ByteCount();
    // Also after an error: a part of the copy may be enqueued.
    copy_ = Copy::unknown;
    PENSTOCK_TRY_ASSIGN(copied_, context_.copied_out.record(*context_.copy_out, context_.events, bytes,
                                                            "gradient of " + flat_.layout->name));
    copy_ = Copy::enqueued;
    flat_.grad.copied_out = copied_.fence();
    return enqueued;
  }

  EngineContext& context_;
  FlatState& flat_;
  const Incoming where_;
  const Accumulation how_;
  std::uint64_t number_ = 0;  // in the accumulation order
  bool asked_ = false, leased_ = false;
  swap::PendingLease pending_accumulator_, pending_incoming_;
  swap::Lease accumulator_, incoming_;
  tiers::StreamProgress::Point copied_;
  Copy copy_ = Copy::none;
};

/// Waits for what the device does where nothing is left to be done by workers.
class FinishOnDeviceHop final : public OrderedHop {
 public:
  FinishOnDeviceHop(EngineContext& context, const CopyOutHop& copied, FlatState& flat)
      : OrderedHop(context.communicator, context.collective_order),
        context_(context),
        copied_(copied),
        flat_(flat) {}

  TimePoint poll_interval() const override { return context_.copied_out.next_query(); }

 private:
  // Waits for the device even after a failure, because it uses the leases of the previous hop.
  [[nodiscard]] bool continues_after_failure() const override { return true; }
  Result<HopState> advance() override {
    PENSTOCK_TRY_ASSIGN(const bool done, context_.copied_out.has_passed(copied_.copied()));
    if (!done) return HopState::ordered;
    if (copied_.sums_squares()) {
      std::vector<double>& partials = flat_.grad.square_partials;
      partials.resize(flat_.grad.partials.size() / ByteCount(sizeof(double)));
      std::memcpy(partials.data(), flat_.grad.partials.data(), flat_.grad.partials.size().value());
    }
    return HopState::done;
  }

  EngineContext& context_;
  const CopyOutHop& copied_;
  FlatState& flat_;
};

/// Runs on a worker, with the help of the others. Uses the leases of `copied`, which exists as long as its move.
Result<void> accumulate(const CopyOutHop& copied, FlatState& flat, Accumulation how, const Config& config,
                        parallel::Workers& workers) {
  std::vector<double>& partials = flat.grad.square_partials;
  partials.resize(how.last ? ceil_divide(flat.layout->shard.value(), Compute::square_sum_block) : 0);
  return accumulate_shard({.incoming = copied.incoming(),
                           .incoming_dtype = config.dtype,
                           .accumulator = copied.accumulator(),
                           .accumulator_dtype = config.grad_accum_dtype},
                          how.first ? kernels::GradientWrite::overwrite : kernels::GradientWrite::accumulate,
                          partials, workers);
}

/// Waits for the copy, then runs `work` on a worker. Is an OrderedHop because that aborts the communicator when it
/// fails, so that the peers get the cause.
class AccumulateHop final : public OrderedHop {
 public:
  AccumulateHop(EngineContext& context, const CopyOutHop& copied, std::unique_ptr<swap::Hop> work)
      : OrderedHop(context.communicator, context.collective_order),
        context_(context),
        copied_(copied),
        work_(std::move(work)) {}

  TimePoint poll_interval() const override {
    return working_ ? work_->poll_interval() : context_.copied_out.next_query();
  }

 private:
  // Waits for copy and worker even after a failure, because they use the leases of the previous hop.
  [[nodiscard]] bool continues_after_failure() const override { return true; }
  Result<HopState> advance() override {
    const HopState waiting = copied_.reads_full_gradient() ? HopState::pending : HopState::ordered;
    if (!working_) {
      PENSTOCK_TRY_ASSIGN(const bool has_copied, context_.copied_out.has_passed(copied_.copied()));
      if (!has_copied) return waiting;
      working_ = true;
      PENSTOCK_TRY(work_->start());
    }
    PENSTOCK_TRY_ASSIGN(const HopState state, work_->poll());
    return state == HopState::pending ? waiting : state;
  }

  EngineContext& context_;
  const CopyOutHop& copied_;
  std::unique_ptr<swap::Hop> work_;
  bool working_ = false;
};

/// The hops after the reduction.
void then_accumulate(swap::Move& move, EngineContext& context, FlatState& flat, Accumulation how) {
  auto copy_out = std::make_unique<CopyOutHop>(context, flat, how);
  const CopyOutHop& copied = *copy_out;
  move.then(std::move(copy_out));
  if (copied.is_all()) return move.then(std::make_unique<FinishOnDeviceHop>(context, copied, flat));
  auto work =
      swap::make_work_hop(context.internals.executor(), context.wake, [&copied, &flat, how, &context] {
        return accumulate(copied, flat, how, context.config, context.workers);
      });
  move.then(std::make_unique<AccumulateHop>(context, copied, std::move(work)));
}

}  // namespace

std::vector<swap::Move> make_gradient_moves(EngineContext& context, std::span<const WrittenGradient> bucket,
                                            const CollectiveSignature& signature) {
  auto together = std::make_shared<GradientBucket>();
  together->signature = signature;
  for (const WrittenGradient& one : bucket) {
    together->flats.push_back(one.flat->grad.full);
    together->written.push_back(one.flat->grad.written_event.get());
    together->reduced.push_back(one.flat->grad.reduced.get());
    together->names.append(together->names.empty() ? "" : ", ").append(one.flat->layout->name);
  }
  std::vector<swap::Move> moves(bucket.size());
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    moves[i].then(i == 0 ? make_reduce_scatter_hop(context.collectives(), together)
                         : make_reduced_together_hop(context.collectives(), together));
    then_accumulate(moves[i], context, *bucket[i].flat, bucket[i].how);
  }
  return moves;
}

}  // namespace penstock::zero
