#include "swap/residency/host_residency.hpp"

#include "tiers/store/tensor_slot.hpp"

#include <algorithm>
#include <span>

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

/// The bytes that the tensor occupies in memory: the length of its extent, if it has one, because transfers move whole
/// blocks of the file system.
ByteCount HostResidency::padded_size(TensorId tensor) const {
  const auto& description = store_.description(tensor);
  return description.extent ? description.extent->length : description.size;
}

/// An address range for `tensor` from free memory.
std::optional<tiers::Reservation> HostResidency::reserve_free(TensorId tensor, End end) {
  const auto& description = store_.description(tensor);
  const bool is_copy = description.extent.has_value();
  return budget_.reserve(padded_size(tensor), is_copy ? tiers::Purpose::staging : description.purpose, end);
}

/// Where a tensor lies for which a request waits: one that stays in memory apart from those that leave after their use.
HostResidency::End HostResidency::end_of_memory_for(TensorId tensor) const {
  const auto& description = store_.description(tensor);
  return description.retain && !description.transient ? End::low : End::high;
}

/// The same, with eviction. None when the request must wait: for stores that it has begun rather than evict others
/// meanwhile.
std::optional<tiers::Reservation> HostResidency::reserve(TensorId tensor) {
  if (storing_for_ == tensor) {
    if (std::any_of(storing_victims_.begin(), storing_victims_.end(),
                    [this](TensorId victim) { return storing_.contains(victim); }))
      return std::nullopt;
    storing_for_.reset();
    for (const TensorId victim : storing_victims_)
      if (is_clean(victim) && !store_.copy(victim).leased()) drop(victim);
  }
  const End end = end_of_memory_for(tensor);
  if (auto reservation = reserve_free(tensor, end)) return reservation;
  if (make_room(tensor, /*from_homes=*/false) != Room::now) return std::nullopt;
  return reserve_free(tensor, end);
}

/// Adds it to the search that has begun.
bool HostResidency::adds_room(TensorId candidate) {
  return search_.add(candidate, store_.copy(candidate).reservation);
}

/// Evicts what the policy chooses, so that there is room for the tensor: dirty copies are stored first. Clean ones
/// leave at once, so that no later request takes them again meanwhile.
HostResidency::Room HostResidency::make_room(TensorId tensor, bool from_homes) {
  // Where leases hold the memory, a request waits for long.
  const ByteCount most =
      budget_.free() + eviction_.size() + (from_homes ? eviction_.size_of_homes() : ByteCount());
  const Search wanted{tensor, from_homes ? 1u : 0u, changes_of_room()};
  if (most < padded_size(tensor) || found_no_room_ == wanted) return Room::none;
  search_.begin(padded_size(tensor));
  const std::uint64_t position = next_uses_.position();
  const auto add = [this](TensorId candidate) { return !adds_room(candidate); };
  if (eviction_.walk(position, add) && from_homes) eviction_.walk_homes(position, add);
  const std::span<const TensorId> victims = search_.found();
  if (victims.empty()) {
    found_no_room_ = wanted;
    return Room::none;
  }
  storing_victims_.clear();
  for (const TensorId victim : victims) {
    if (is_clean(victim)) {
      drop(victim);
    } else {
      storing_victims_.push_back(victim);
      start_write_behind(victim);
    }
  }
  if (storing_victims_.empty()) return Room::now;
  storing_for_ = tensor;
  return Room::later;
}

/// Whether copies that leave memory once they are stored will open a gap that is long enough.
bool HostResidency::stores_make_room(ByteCount wanted) {
  std::size_t left = 64;  // to look at, more than an update has in flight
  search_of_stores_.begin(wanted);
  for (auto store = storing_.begin(); store != storing_.end() && left > 0; ++store, --left) {
    const TensorId tensor = store->first;
    const tiers::Reservation& range = store_.copy(tensor).reservation;
    if (keeps(tensor) || !range.held() || is_beyond_limit(tensor)) continue;
    if (search_of_stores_.add(tensor, range)) return true;
  }
  return false;
}

/// An address range for a load that no request waits for. Evicts clean copies whose next use is at `evict_from` or
/// later, unless it can wait for stores. At the high end of memory, unless it has its home there: in the middle, a
/// lease of it might leave no gap that is long enough for a request.
std::optional<tiers::Reservation> HostResidency::reserve_early(TensorId tensor, std::uint64_t evict_from) {
  const End end = has_home(tensor) ? End::low : End::high;
  if (auto reservation = reserve_free(tensor, end)) return reservation;
  const Search wanted{tensor, evict_from, changes_of_room()};
  if (found_no_early_room_ == wanted) return std::nullopt;
  search_.begin(padded_size(tensor));
  const auto add = [this](TensorId candidate) { return !adds_room(candidate); };
  // A tensor that leaves memory after its use waits for the room of others that leave it: a copy that is evicted
  // instead might be read once more.
  const bool waits = !keeps(tensor) && stores_make_room(padded_size(tensor));
  if (waits || eviction_.walk_clean_used_from(evict_from, add)) {
    found_no_early_room_ = wanted;
    return std::nullopt;
  }
  for (const TensorId victim : search_.found()) drop(victim);
  return reserve_free(tensor, end);
}

void HostResidency::start_prefetches() {
  while (const auto tensor = prefetch_.next_of_hints(budget_.free())) {
    auto reservation = reserve_free(*tensor, has_home(*tensor) ? End::low : End::high);
    if (!reservation) break;
    start_load(*tensor, std::move(*reservation), /*verify=*/false, /*urgent=*/false);
  }
  while (const auto tensor = prefetch_.next()) {
    if (!prefetch_.has_room(*tensor, budget_.free())) return;
    auto reservation = reserve_early(*tensor, prefetch_.evicts_from(*tensor));
    if (!reservation) return;
    start_load(*tensor, std::move(*reservation), /*verify=*/false, /*urgent=*/false);
  }
}

bool HostResidency::is_beyond_limit(TensorId tensor) const {
  const tiers::Reservation& range = store_.copy(tensor).reservation;
  return limit_ && range.held() && range.offset() + padded_size(tensor).value() > limit_->value();
}

/// Homes are what gives way to a limit of the memory: the rest of it stays as large as it was. Those beyond it lose
/// theirs until they have left.
void HostResidency::assign_homes() {
  ByteCount room = homes_;
  if (limit_) room -= std::min(room, budget_.size() - *limit_);
  for (const TensorId tensor : store_.tensors()) {
    const auto& description = store_.description(tensor);
    if (!may_have_home(description)) continue;
    const ByteCount size = description.extent->length;
    const bool beyond = is_beyond_limit(tensor), fits = !beyond && size <= room;
    if (!beyond) room -= fits ? size : room;
    if (fits == has_home(tensor)) continue;
    has_home_[slot_of(tensor)] = fits;
    const CopyState state = store_.copy(tensor).state;
    if (state == CopyState::dirty && is_stored_behind(tensor)) queue_store(tensor);
    // One that loses its home is stored now, and read and stored once more by an update that has begun.
    if (!fits) ledger_.predict_traffic(description.purpose, size, size * 2);
    if (fits && state == CopyState::absent && store_.stored(tensor))
      ledger_.predict_traffic(description.purpose, size, {});
    update_policies(tensor);
  }
}

void HostResidency::limit_memory(ByteCount end) {
  budget_.limit(end);
  limit_ = end < budget_.size() ? std::optional(end) : std::nullopt;
  for (const TensorId tensor : store_.tensors()) {
    const tiers::HostCopy& copy = store_.copy(tensor);
    if (!is_beyond_limit(tensor) || copy.leased() || !store_.description(tensor).extent) continue;
    if (copy.state == CopyState::clean) drop(tensor);
    if (copy.state == CopyState::dirty) queue_store(tensor);
  }
  assign_homes();
}

std::optional<tiers::Reservation> HostResidency::vacate(TensorId tensor) {
  const tiers::HostCopy& copy = store_.copy(tensor);
  if (copy.state != CopyState::clean || copy.leased() || !store_.description(tensor).extent)
    return std::nullopt;
  auto range = store_.vacate(tensor);
  vacated_.insert(tensor);
  effects_.drop(tensor);
  prefetched_.erase(tensor);
  update_policies(tensor);
  return range;
}

void HostResidency::end_vacancy(TensorId tensor) {
  if (vacated_.erase(tensor) > 0) update_policies(tensor);
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
