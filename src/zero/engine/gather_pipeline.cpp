#include "zero/engine/gather_pipeline.hpp"

#include <algorithm>

namespace penstock::zero {

using swap::HopState;
using swap::StallCause;

namespace {

/// Leases the shard for the trainer's thread. No other rank takes part, so that it needs no place in the order.
class LeaseHop final : public OrderedHop {
 public:
  LeaseHop(EngineContext& context, FlatState& flat, swap::PendingLease pending)
      : OrderedHop(context.communicator, context.collective_order),
        flat_(flat),
        pending_(std::move(pending)) {}
  bool is_blocked() const override { return true; }

 private:
  Result<HopState> advance() override {
    if (!flat_.updated) return HopState::pending;
    pending_.ask();
    auto lease = pending_.poll();
    if (!lease) return HopState::pending;
    PENSTOCK_TRY_ASSIGN(flat_.gathered.in_place, *std::move(lease));
    return HopState::done;
  }

  FlatState& flat_;
  swap::PendingLease pending_;
};

}  // namespace

Result<void> GatherPipeline::gather(FlatState& flat, const tiers::Reservation& range) {
  GatheredFlat& gathered = flat.gathered;
  // The accelerator may be late: the flat's last gather may still read the shard's host copy.
  context_.internals.wait_ignoring_stores([&] { return gathered.gather.done; }, StallCause::parameters);
  gathered.waited_for = false;
  swap::PendingLease shard_lease;
  if (flat.kept_shard.empty()) shard_lease = pending_lease_of(flat);
  if (context_.shares_memory) {
    context_.start(std::make_unique<LeaseHop>(context_, flat, std::move(shard_lease)), gathered.gather,
                   {"gathers", flat.layout->name, {}, of_parameters});
    return ok();
  }
  gathered.parameters = context_.at(range, flat.layout->length);
  const ElementCount shard = flat.layout->shard;
  GatherTarget target{.name = flat.layout->name,
                      .kept_shard = flat.kept_shard,
                      .signature = context_.signature(CollectiveSignature::Subject::parameters, flat),
                      .slot = gathered.parameters.slice(shard * context_.communicator.rank(), shard),
                      .flat = gathered.parameters.bytes,
                      .writable = context_.fences.take(range.offset(), range.size()),
                      .updated = &flat.updated,
                      .gathered = gathered.gathered.get()};
  context_.start(make_gather_hop(context_.collectives(), std::move(target), std::move(shard_lease)),
                 gathered.gather, {"gathers", flat.layout->name, {}, of_parameters});
  return ok();
}

/// The use is recorded here, so that the order of uses is that of the trainer; but for a shard that the update has
/// still to write. Announced, it would be loaded or kept at once: in memory that the update needs, and for nothing
/// where the update overwrites it.
swap::PendingLease GatherPipeline::pending_lease_of(const FlatState& flat) {
  if (flat.is_written && !flat.updated)
    return context_.internals.request_later(flat.shard, swap::Access::read);
  return context_.internals.announce(flat.shard, swap::Access::read);
}

Result<void> GatherPipeline::wait_for_gather(FlatState& flat) {
  const MoveProgress& gather = flat.gathered.gather;
  std::optional<Error> error;  // copied under the lock, because the move may be in flight
  const auto is_ordered = [&] {
    error = gather.error;
    return gather.ordered || error;
  };
  PENSTOCK_TRY(context_.wait_beside_update(is_ordered, StallCause::parameters));
  if (error) return context_.fail(*std::move(error));
  return ok();
}

/// Ends the lease of the shard when no work uses it any more.
Result<void> GatherPipeline::end_lease(FlatState& flat) {
  PENSTOCK_TRY(wait_for_gather(flat));
  for (const auto& [stream, last_use] : std::exchange(flat.gathered.last_uses, {})) {
    PENSTOCK_TRY(context_.wait_for(*last_use, "the trainer's use of a unit's parameters"));
  }
  flat.gathered.in_place.end();
  return ok();
}

Result<void> GatherPipeline::finish_use(FlatState& flat, const tiers::Reservation& range) {
  if (context_.shares_memory) return end_lease(flat);
  std::vector<tiers::Fence> last_uses;
  for (auto& [stream, last_use] : std::exchange(flat.gathered.last_uses, {})) last_uses.push_back(last_use);
  if (flat.gathered.waited_for) {
    context_.fences.release(range.offset(), range.size(), last_uses);
    return ok();
  }
  // A prefetched flat that was never used: no compute stream waits for its gather, so wait here.
  PENSTOCK_TRY(wait_for_gather(flat));
  return context_.wait_for(*flat.gathered.gathered, "collectives");
}

Result<std::vector<DeviceTensor>> GatherPipeline::views(std::uint32_t unit, tiers::Stream& stream) {
  const auto needed = context_.shards.needed_by(unit);
  for (const std::uint32_t flat : needed) PENSTOCK_TRY(wait_for_gather(context_.flats[flat]));
  for (const std::uint32_t flat : needed) {
    GatheredFlat& gathered = context_.flats[flat].gathered;
    if (context_.shares_memory) {
      gathered.parameters =
          context_.on_device(gathered.in_place.bytes(), context_.flats[flat].layout->length);
      continue;
    }
    if (auto waits = stream.wait(*gathered.gathered); !waits) return context_.fail(waits.error()).error();
    gathered.waited_for = true;
  }
  std::vector<DeviceTensor> views;
  for (const ParameterId id : context_.model.parameters_of(unit)) {
    const ShardLayout::Place place = context_.shards.place(id);
    views.push_back(context_.flats[place.flat].gathered.parameters.slice(place.begin, place.count));
  }
  return views;
}

Result<void> GatherPipeline::end_use(std::uint32_t unit, tiers::Stream& stream) {
  auto fence = context_.events.record(stream);
  if (!fence) return context_.fail(fence.error());
  for (const std::uint32_t flat : context_.shards.needed_by(unit)) {
    context_.flats[flat].gathered.last_uses[stream.handle().native()] = *fence;
  }
  return ok();
}

bool GatherPipeline::has_ended(const GatheredFlat& flat) {
  return std::all_of(flat.last_uses.begin(), flat.last_uses.end(), [](const auto& use) {
    const auto passed = use.second->query();
    return passed && *passed;  // who waits for it gets the error
  });
}

void GatherPipeline::abandon_step() {
  for (FlatState& flat : context_.flats) {
    flat.gathered.gather = {};
    flat.gathered.waited_for = false;
    flat.gathered.last_uses.clear();
    flat.gathered.in_place.end();
  }
  context_.fences.clear();
}

bool GatherPipeline::idle() const {
  return std::all_of(context_.flats.begin(), context_.flats.end(),
                     [](const FlatState& flat) { return flat.gathered.gather.done; });
}

}  // namespace penstock::zero
