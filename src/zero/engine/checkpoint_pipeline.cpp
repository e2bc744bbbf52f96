#include "zero/engine/checkpoint_pipeline.hpp"

#include "zero/engine/checkpoint_hops.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace penstock::zero {

CheckpointPipeline::CheckpointPipeline(EngineContext& context, const MemoryPlan::Checkpoints& plan,
                                       DeviceSpan slots, std::vector<tiers::TensorId> tensors)
    : context_(context),
      plan_(plan),
      memory_(slots),
      slots_(plan.count, plan.device_slots),
      checkpoints_(plan.count),
      writable_(plan.device_slots) {
  for (std::size_t i = 0; i < tensors.size(); ++i) checkpoints_[i].tensor = tensors[i];
}

DeviceSpan CheckpointPipeline::slot_of(std::uint32_t checkpoint) const {
  const ByteCount size = context_.model.checkpoints.size;
  return memory_.subspan(plan_.size * *slots_.slot_of(checkpoint), size);
}

Result<DeviceSpan> CheckpointPipeline::lease(std::uint32_t checkpoint, CheckpointUse use,
                                             tiers::Stream& stream) {
  constexpr const char* operation = "Engine::checkpoint";
  Checkpoint& state = checkpoints_[checkpoint];
  if (slots_.is_leased(checkpoint)) {
    return Error::invalid_argument(operation)
        .reason("the checkpoint has a lease")
        .object(name(checkpoint))
        .advice("end it first");
  }
  const bool reads = use != CheckpointUse::write;
  if (reads && !state.written) {
    return Error::invalid_argument(operation)
        .reason("the checkpoint is read before it was written in this step, or after its last read")
        .object(name(checkpoint))
        .advice("lease it to write first; use CheckpointUse::last_read for the last lease only");
  }
  // Before anything changes: each wait may return an error after which the call is repeated.
  if (!reads) PENSTOCK_TRY(wait_until_done(state.store));
  if (!reads || !slots_.slot_of(checkpoint)) PENSTOCK_TRY(wait_until_done(state.load));
  if (!slots_.slot_of(checkpoint)) {
    const auto slot = slots_.choose();
    if (!slot) return no_slot(operation);
    PENSTOCK_TRY(take_slot(checkpoint, *slot));
    if (reads) start_load(checkpoint);
  }
  PENSTOCK_TRY(reads ? wait_for_contents(checkpoint, stream) : wait_for_slot(checkpoint, stream));
  state.use = use;
  state.stream = &stream;
  slots_.note_use(checkpoint,
                  reads ? CheckpointSlots::Contents::loaded : CheckpointSlots::Contents::undefined);
  slots_.lease(checkpoint);
  load_ahead();
  return slot_of(checkpoint);
}

Error CheckpointPipeline::no_slot(const char* operation) const {
  Error error = Error(ErrorCode::budget_too_small, operation)
                    .reason("all slots for checkpoints are leased")
                    .wanted("at most " + std::to_string(plan_.device_slots) + " leases at a time")
                    .advice("end a CheckpointLease, or raise CheckpointLayout::leased_max, for " +
                            to_string(plan_.size) + " of the device's memory each");
  for (const auto& leased : slots_.occupants()) error = std::move(error).note("leased  " + name(*leased));
  return error;
}

/// Work on `stream` may then read the slot.
Result<void> CheckpointPipeline::wait_for_contents(std::uint32_t checkpoint, tiers::Stream& stream) {
  const Checkpoint& state = checkpoints_[checkpoint];
  PENSTOCK_TRY(wait_until_ordered(state.load));
  // Perhaps on another stream.
  if (auto waits = stream.wait(*state.written_at); !waits) return context_.fail(waits.error());
  if (!state.loaded_at) return ok();
  if (auto waits = stream.wait(*state.loaded_at); !waits) return context_.fail(waits.error());
  return ok();
}

/// Work on `stream` may then write the slot: readers, and copies of older contents, have ended before.
Result<void> CheckpointPipeline::wait_for_slot(std::uint32_t checkpoint, tiers::Stream& stream) {
  Checkpoint& state = checkpoints_[checkpoint];
  std::vector<tiers::Fence>& fences = writable_[*slots_.slot_of(checkpoint)];
  for (const tiers::Fence& fence : fences) {
    if (auto waits = stream.wait(*fence); !waits) return context_.fail(waits.error());
  }
  fences.clear();
  state.written = state.stored = false;
  state.stored_at.reset();
  state.loaded_at.reset();
  return ok();
}

Result<void> CheckpointPipeline::release(std::uint32_t checkpoint) {
  Checkpoint& state = checkpoints_[checkpoint];
  slots_.release(checkpoint);
  auto fence = context_.events.record(*state.stream);
  if (!fence) return context_.fail(fence.error());
  std::vector<tiers::Fence>& fences = writable_[*slots_.slot_of(checkpoint)];
  // A later fence of the same stream stands for the earlier one too.
  const void* const native = state.stream->handle().native();
  if (std::exchange(state.fenced, native) == native && !fences.empty()) fences.pop_back();
  fences.push_back(*fence);
  if (state.use == CheckpointUse::last_read) {
    state.written = false;
    slots_.end_contents(checkpoint);
  }
  if (state.use != CheckpointUse::write) return ok();
  state.written = true;
  state.written_at = *std::move(fence);
  return plan_.leave_device() && slots_.is_expected_to_leave(checkpoint) ? start_store(checkpoint) : ok();
}

/// Makes a slot the checkpoint's.
Result<void> CheckpointPipeline::take_slot(std::uint32_t checkpoint, std::uint32_t slot) {
  if (const auto occupant = slots_.occupants()[slot]) PENSTOCK_TRY(free_slot(*occupant, true));
  slots_.place(checkpoint, slot);
  checkpoints_[checkpoint].fenced = nullptr;
  return ok();
}

/// `keep`: its contents are needed later.
Result<void> CheckpointPipeline::free_slot(std::uint32_t checkpoint, bool keep) {
  Checkpoint& state = checkpoints_[checkpoint];
  const bool moves = keep && state.written;
  if (moves && !state.stored) PENSTOCK_TRY(start_store(checkpoint));
  std::vector<tiers::Fence>& fences = writable_[*slots_.slot_of(checkpoint)];
  PENSTOCK_TRY(wait_until_ordered(state.store));
  PENSTOCK_TRY(wait_until_ordered(state.load));
  for (tiers::Fence* const copied : {&state.stored_at, &state.loaded_at}) {
    if (*copied) fences.push_back(std::exchange(*copied, nullptr));
  }
  slots_.remove(checkpoint, moves);
  return ok();
}

Result<void> CheckpointPipeline::start_store(std::uint32_t checkpoint) {
  Checkpoint& state = checkpoints_[checkpoint];
  PENSTOCK_TRY(wait_until_done(state.store));
  state.stored = true;
  context_.start(
      make_checkpoint_store_hop(context_,
                                {.name = name(checkpoint),
                                 .slot = slot_of(checkpoint),
                                 .after = {state.written_at},
                                 .copied = &state.stored_at},
                                context_.internals.announce(state.tensor, swap::Access::overwrite)),
      state.store, {"checkpoints to the host", "checkpoint ", checkpoint});
  return ok();
}

/// Precondition: its last load is done.
void CheckpointPipeline::start_load(std::uint32_t checkpoint) {
  Checkpoint& state = checkpoints_[checkpoint];
  context_.start(make_checkpoint_load_hop(context_,
                                          {.name = name(checkpoint),
                                           .slot = slot_of(checkpoint),
                                           .after = std::exchange(writable_[*slots_.slot_of(checkpoint)], {}),
                                           .copied = &state.loaded_at},
                                          context_.internals.announce(state.tensor, swap::Access::read)),
                 state.load, {"checkpoints to the device", "checkpoint ", checkpoint});
}

/// Contents that are not needed any more are neither read ahead by the runtime nor written.
void CheckpointPipeline::discard_unneeded() {
  for (std::uint32_t i = 0; plan_.leave_device() && i < plan_.count - plan_.in_host; ++i) {
    Checkpoint& state = checkpoints_[i];
    if (state.written || !state.stored || !has_reached(state.store, &MoveProgress::done) ||
        !has_reached(state.load, &MoveProgress::done))
      continue;
    if (context_.internals.discard(state.tensor)) state.stored = false;
  }
}

void CheckpointPipeline::load_ahead() {
  discard_unneeded();
  const auto is_written = [this](std::uint32_t checkpoint) { return checkpoints_[checkpoint].written; };
  while (const auto ahead = slots_.next_ahead(is_written)) {
    const auto slot = slots_.choose(ahead->uses + 1);
    if (!slot) return;
    if (const auto occupant = slots_.occupants()[*slot]) {
      const Checkpoint& leaves = checkpoints_[*occupant];
      if (leaves.written && !leaves.stored) return;
      if (!has_reached(leaves.store, &MoveProgress::ordered) ||
          !has_reached(leaves.load, &MoveProgress::ordered))
        return;
    }
    if (!has_reached(checkpoints_[ahead->checkpoint].load, &MoveProgress::done)) return;
    if (!take_slot(ahead->checkpoint, *slot)) return;  // the engine has failed, which the next call returns
    start_load(ahead->checkpoint);
  }
}

bool CheckpointPipeline::has_reached(const MoveProgress& progress, bool MoveProgress::*state) const {
  bool reached = false;
  context_.internals.wait_ignoring_stores([&] {
    reached = progress.*state || progress.done;
    return true;
  });
  return reached;
}

Result<void> CheckpointPipeline::wait_until_ordered(const MoveProgress& progress) {
  std::optional<Error> error;  // copied under the lock, because the move may be in flight
  const auto is_ordered = [&] {
    error = progress.error;
    return progress.ordered || progress.done;
  };
  PENSTOCK_TRY(context_.wait_beside_update(is_ordered, swap::StallCause::checkpoints));
  if (error) return context_.fail(*std::move(error));
  return ok();
}

Result<void> CheckpointPipeline::wait_until_done(const MoveProgress& progress) {
  PENSTOCK_TRY(context_.wait_beside_update([&] { return progress.done; }, swap::StallCause::checkpoints));
  if (progress.error) return context_.fail(*progress.error);
  return ok();
}

Result<void> CheckpointPipeline::check_no_leases(const char* operation) const {
  for (std::uint32_t i = 0; i < checkpoints_.size(); ++i) {
    if (!slots_.is_leased(i)) continue;
    return Error(ErrorCode::failed_state, operation)
        .reason("a checkpoint's lease is still held")
        .object(name(i))
        .advice("end every CheckpointLease before begin_step(), step(), park() and abandon_step()");
  }
  return ok();
}

Result<void> CheckpointPipeline::forget_contents() {
  for (std::uint32_t i = 0; i < checkpoints_.size(); ++i) {
    checkpoints_[i].written = false;
    if (slots_.slot_of(i)) PENSTOCK_TRY(free_slot(i, false));
  }
  return ok();
}

Result<void> CheckpointPipeline::begin_step() {
  if (!slots_.was_used()) return ok();
  PENSTOCK_TRY(forget_contents());
  slots_.abandon_step();
  return ok();
}

void CheckpointPipeline::abandon_step() {
  for (std::uint32_t i = 0; i < checkpoints_.size(); ++i) {
    if (slots_.slot_of(i)) slots_.remove(i, false);
    const tiers::TensorId tensor = checkpoints_[i].tensor;
    checkpoints_[i] = {.tensor = tensor};
  }
  for (auto& fences : writable_) fences.clear();
  slots_.abandon_step();
}

std::vector<std::pair<std::string, DeviceSpan>> CheckpointPipeline::contents() const {
  std::vector<std::pair<std::string, DeviceSpan>> all;
  for (std::uint32_t i = 0; i < checkpoints_.size(); ++i) {
    if (checkpoints_[i].written && slots_.slot_of(i)) all.emplace_back(name(i), slot_of(i));
  }
  return all;
}

std::vector<CheckpointPipeline::InHost> CheckpointPipeline::in_host() const {
  std::vector<InHost> all;
  if (!plan_.leave_device()) return all;
  for (std::uint32_t i = plan_.count - plan_.in_host; i < plan_.count; ++i)
    all.push_back({name(i), checkpoints_[i].tensor, checkpoints_[i].written && checkpoints_[i].stored});
  return all;
}

std::vector<tiers::Fence> CheckpointPipeline::last_uses() const {
  std::vector<tiers::Fence> all;
  for (const auto& fences : writable_) all.insert(all.end(), fences.begin(), fences.end());
  return all;
}

bool CheckpointPipeline::idle() const {
  return std::all_of(checkpoints_.begin(), checkpoints_.end(),
                     [](const Checkpoint& state) { return state.store.done && state.load.done; });
}

}  // namespace penstock::zero
