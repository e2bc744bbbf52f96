#include "swap/residency/host_residency.hpp"

#include "tiers/store/tensor_slot.hpp"

#include <algorithm>

namespace penstock::swap {

using tiers::CopyState;
using tiers::slot_of;
using tiers::TensorId;

HostResidency::HostResidency(tiers::TensorStore& store, tiers::MemoryBudget& budget, ExtentAllocator& extents,
                             tiers::Ledger& ledger, Effects& effects, Options options)
    : store_(store),
      budget_(budget),
      extents_(extents),
      ledger_(ledger),
      effects_(effects),
      eviction_(options.eviction, options.costs),
      search_(budget),
      search_of_stores_(budget),
      prefetch_(next_uses_, options.lookahead),
      evacuation_(store, extents, std::move(options.file_names), std::move(options.messages)) {
  if (options.eviction == Eviction::reuse_distance) reuse_distance_.emplace(options.reuse_distance_max);
}

Result<void> HostResidency::add(TensorId tensor) {
  const std::size_t number = slot_of(tensor);
  if (number >= pending_uses_.size()) {
    pending_uses_.resize(number + 1);
    has_home_.resize(number + 1);
  }
  const auto& description = store_.description(tensor);
  if (may_have_home(description)) {
    homes_ += description.extent->length;
    has_home_[number] = !limit_;
  }
  if (!description.stays_in_memory()) {
    if (description.extent) ledger_.hold(tiers::Tier::nvme, description.purpose, description.extent->length);
    update_policies(tensor);
    return ok();
  }
  auto range = reserve_free(tensor, end_of_memory_for(tensor));
  if (!range) {
    search_.begin(padded_size(tensor));
    const auto add = [this](TensorId candidate) { return !is_clean(candidate) || !adds_room(candidate); };
    if (eviction_.walk_clean_used_from(0, add)) eviction_.walk_homes(next_uses_.position(), add);
    for (const TensorId victim : search_.found()) drop(victim);
    range = reserve_free(tensor, end_of_memory_for(tensor));
  }
  if (!range) return budget_.too_small(padded_size(tensor)).object(description.name);
  store_.pin_range(tensor, std::move(*range));
  update_policies(tensor);
  return ok();
}

void HostResidency::forget(TensorId tensor) {
  prefetch_.withdraw(tensor);
  std::erase(to_store_, tensor);
  evacuation_.forget(tensor);
  std::erase(failed_stores_, tensor);
  std::erase(storing_victims_, tensor);
  std::erase(asked_queue_, tensor);
  asked_.erase(tensor);
  asked_errors_.erase(tensor);
  vacated_.erase(tensor);
  load_errors_.erase(tensor);
  unreadable_.erase(tensor);
  prefetched_.erase(tensor);
  hastened_.erase(tensor);
  const std::uint64_t revision = next_uses_.revision();
  prefetch_.forget(tensor);
  next_uses_.forget(tensor);
  refresh_after_new_prediction(revision);
  update_policies(tensor);
  // Discards the error, and queues the failed stores of other tensors again. If one fails again, its error is reported.
  if (store_error_ && store_error_->tensor == tensor) (void)take_store_error();
}

tiers::TensorDescription HostResidency::remove(TensorId tensor) {
  discard(tensor);
  tiers::TensorDescription description = store_.remove(tensor);
  has_home_[slot_of(tensor)] = false;
  if (may_have_home(description)) homes_ -= description.extent->length;
  if (const auto& extent = description.extent) {
    release_extent(*extent, description.purpose);
    evacuation_.note_departed(tensor, extent->path, ByteCount());
  }
  pending_uses_[slot_of(tensor)] = 0;
  eviction_.update(tensor, std::nullopt);
  prefetch_.update(tensor, {});
  return description;
}

bool HostResidency::idle(TensorId tensor) const {
  const CopyState state = store_.copy(tensor).state;
  return state != CopyState::loading && state != CopyState::storing;
}

bool HostResidency::in_use(TensorId tensor) const {
  return store_.copy(tensor).leased() || pending_uses_[slot_of(tensor)] > 0;
}

void HostResidency::count_pending_use(TensorId tensor, int change) {
  pending_uses_[slot_of(tensor)] += static_cast<std::uint32_t>(change);
  update_policies(tensor);
}

void HostResidency::record_use(TensorId tensor, Access access) {
  if (recorder_) recorder_->use(tensor, store_.description(tensor), access);
  const std::uint64_t revision = next_uses_.revision();
  const std::uint64_t position = next_uses_.use(tensor, access);
  refresh_after_new_prediction(revision);
  update_policies(tensor);
  prefetch_.advance(tensor, position);
}

void HostResidency::end_round() {
  const std::uint64_t revision = next_uses_.revision();
  next_uses_.end_round();
  refresh_after_new_prediction(revision);
}

std::optional<AccessTrace> HostResidency::end_trace() {
  if (!recorder_) return std::nullopt;
  AccessTrace trace = std::move(*recorder_).end();
  recorder_.reset();
  return trace;
}

void HostResidency::predict(std::vector<NextUses::Use> order) {
  const std::uint64_t revision = next_uses_.revision();
  next_uses_.predict(std::move(order));
  refresh_after_new_prediction(revision);
}

/// Updates the policies for all tensors if the trace's revision has changed, because then every tensor's next use has
/// changed.
void HostResidency::refresh_after_new_prediction(std::uint64_t revision_before) {
  if (next_uses_.revision() == revision_before) return;
  prefetch_.rebuild();
  if (reuse_distance_) {
    reuse_distance_->rebuild(next_uses_, [this](TensorId tensor) { return store_.description(tensor).size; });
  }
  for (const TensorId tensor : store_.tensors()) update_policies(tensor);
}

bool HostResidency::has_home(TensorId tensor) const {
  return has_home_[slot_of(tensor)];
}

bool HostResidency::is_stored_behind(TensorId tensor) const {
  const auto& description = store_.description(tensor);
  return description.write_behind && description.extent && !has_home(tensor);
}

void HostResidency::release(TensorId tensor, Access access) {
  if (access == Access::read) {
    store_.remove_reader(tensor);
  } else {
    store_.end_exclusive(tensor);
    if (is_stored_behind(tensor)) to_store_.push_back(tensor);
  }
  after_lease(tensor);
}

/// Called when a lease has ended; does nothing more while the tensor has another lease. Discards the contents of a
/// transient tensor. For a clean copy of any other tensor: queues the tensor for evacuation if its extent is on a
/// retired path, and drops the copy if the tensor is not retained.
void HostResidency::after_lease(TensorId tensor) {
  const auto& description = store_.description(tensor);
  store_.touch(tensor);
  const tiers::HostCopy& copy = store_.copy(tensor);
  if (copy.leased()) return;
  if (description.transient) return discard(tensor);
  if (copy.state == CopyState::dirty && has_home(tensor) && evacuation_.on_retired_path(tensor))
    queue_store(tensor);  // nothing else does
  if (copy.state == CopyState::clean) move_off_retired_path(tensor);
  if (!keeps(tensor) && description.extent && copy.state == CopyState::clean) return drop(tensor);
  update_policies(tensor);
}

/// Whether a clean copy without a lease stays in memory while there is room.
bool HostResidency::keeps(TensorId tensor) const {
  if (is_beyond_limit(tensor)) return false;
  if (has_home(tensor)) return true;
  if (!store_.description(tensor).retain) return false;
  return !reuse_distance_ || pending_uses_[slot_of(tensor)] > 0 || reuse_distance_->keeps(next_uses_, tensor);
}

void HostResidency::discard(TensorId tensor) {
  const CopyState state = store_.copy(tensor).state;
  if (state == CopyState::loading || state == CopyState::storing) {
    unwanted_.insert(tensor);
    return;
  }
  store_.discard(tensor);
  asked_.erase(tensor);
  asked_storing_.erase(tensor);
  asked_errors_.erase(tensor);
  if (state != CopyState::absent) effects_.drop(tensor);
  evacuation_.end(tensor);
  update_policies(tensor);
}

bool HostResidency::discard_if_unwanted(TensorId tensor) {
  if (unwanted_.erase(tensor) == 0) return false;
  discard(tensor);
  return true;
}

void HostResidency::prefetch(TensorId tensor, Hint hint) {
  unreadable_.erase(tensor);
  Hint& given = prefetched_.try_emplace(tensor, hint).first->second;
  given = std::max(given, hint);
  update_policies(tensor);
  prefetch_.request(tensor, given);
}

void HostResidency::stop() {
  stopping_ = true;
  prefetch_.withdraw_all();
  evacuation_.stop();
}

void HostResidency::advance() {
  start_stores();
  // While one request waits for room, later requests get no room; those of resident tensors are granted.
  bool may_reserve = !store_failed();
  for (auto request = requests_.begin(); request != requests_.end();) {
    const Decision decision = decide(*request, may_reserve);
    if (decision == Decision::granted || decision == Decision::failed) {
      request = requests_.erase(request);
      continue;
    }
    if (decision == Decision::waits_for_room) may_reserve = false;
    ++request;
  }
  if (may_reserve && !stopping_) {
    start_prefetches();
    evacuate_paths();
    start_stores();
  } else {
    prefetch_.withdraw_all();
  }
}

void HostResidency::drop(TensorId tensor) {
  store_.drop(tensor);
  effects_.drop(tensor);
  prefetched_.erase(tensor);
  update_policies(tensor);
}

/// Updates the policies' view of `tensor`. Called after every change of its copy, its requests and its next use.
void HostResidency::update_policies(TensorId tensor) {
  const auto& description = store_.description(tensor);
  const tiers::HostCopy& copy = store_.copy(tensor);
  const bool awaited = pending_uses_[slot_of(tensor)] > 0;
  const bool evictable = description.extent && !copy.leased() && copy.reservation.held() &&
                         (copy.state == CopyState::clean || copy.state == CopyState::dirty);
  const bool absent = copy.state == CopyState::absent;
  // prefetch() says that the tensor is used soon, even where the trace does not know it; or next, whatever that says.
  std::uint64_t next_use = awaited ? 0 : next_uses_.next_use(tensor);
  const auto hint = prefetched_.find(tensor);
  const bool prefetched =
      hint != prefetched_.end() && (next_use == NextUses::never || hint->second == Hint::next);
  if (prefetched) next_use = 0;
  const bool overwritten = !awaited && next_uses_.is_overwritten_next(tensor);
  eviction_.update(tensor, evictable
                               ? std::optional(EvictionCandidate{.size = copy.reservation.length(),
                                                                 .path = description.extent->path,
                                                                 .home_in_memory = has_home(tensor),
                                                                 .dirty = copy.state == CopyState::dirty,
                                                                 .is_read_next = !overwritten,
                                                                 .last_use = copy.last_use,
                                                                 .next_use = next_use})
                               : std::nullopt);
  prefetch_.update(
      tensor, {.room = padded_size(tensor),
               .payload = description.size,
               .lacks_room = absent && !copy.reservation.held(),
               .loadable = absent && store_.stored(tensor) && !unreadable_.contains(tensor) &&
                           !vacated_.contains(tensor),
               .retained = description.retain && !overwritten,
               .evictable = evictable && !prefetched && copy.state == CopyState::clean && !has_home(tensor),
               .awaited = awaited});
}

}  // namespace penstock::swap
