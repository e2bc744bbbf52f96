// penstock.update_in_backward: which flats the update gets before step(), and what is read before it begins.

#include "zero/engine/engine_state.hpp"

#include <algorithm>
#include <span>

namespace penstock::zero {

/// For a commit that reads what it would change, or until what it needs is here again.
bool EngineState::update_waits_for_others() const {
  return (commits_ && commits_->reads_states()) || parking_.kinds != ParkKinds::none;
}

/// Adds the flats whose last gradient is being reduced to the update. Does not wait for those whose shard is in use: a
/// later call adds them, or step().
Result<void> EngineState::update_reduced() {
  if (reduced_.empty() || update_waits_for_others()) return ok();
  const auto in_use = std::partition(reduced_.begin(), reduced_.end(),
                                     [this](std::uint32_t flat) { return !shard_in_use(flat); });
  const std::span unused(reduced_.begin(), in_use);
  if (unused.empty()) return ok();
  for (const std::uint32_t flat : unused) {
    PENSTOCK_TRY(residency_->drop_in_place(flat, *this));
  }
  step_.update_in_backward(unused);
  reduced_.erase(reduced_.begin(), in_use);
  return ok();
}

/// A gather that has no lease yet would wait for the update, and its collective is before the gradient's.
bool EngineState::shard_in_use(std::uint32_t flat) const {
  const GatheredFlat& gathered = context_.flats[flat].gathered;
  const MoveProgress& gather = gathered.gather;
  bool is_gathering = false;
  context_.internals.wait_ignoring_stores(
      [&] { return is_gathering = !gather.ordered && !gather.done, true; });
  if (is_gathering || !context_.shares_memory) return is_gathering;
  return residency_->is_leased(flat) || !GatherPipeline::has_ended(gathered);
}

/// Waits for the update before that of the step in progress, or returns the error that has stopped the latter.
Result<void> EngineState::finish_last_update() {
  return update_.has_begun() ? context_.check_update() : context_.finish_update();
}

/// From the end of an update, in the forward, to the next one's first gradient the disk has nothing else to do. Of
/// several micro-batches only the last one's gradients are followed by an update.
void EngineState::read_between_updates() {
  if (!updates_in_backward() || !update_.may_read_between() || gradients_.micro_batches() > 1) return;
  if (update_waits_for_others()) return;
  bool is_complete = false;
  context_.internals.wait_ignoring_stores([&] {
    is_complete = context_.update.done && !context_.update.error && !context_.update_stopped;
    return true;
  });
  if (is_complete) update_.read_between();
}

}  // namespace penstock::zero
