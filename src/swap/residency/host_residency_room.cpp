#include "swap/residency/host_residency.hpp"

#include "tiers/store/tensor_slot.hpp"

#include <algorithm>

// Room of HostResidency: for requests, for what is read ahead, within a limit and at home.

namespace penstock::swap {

using tiers::CopyState;
using tiers::slot_of;
using tiers::TensorId;

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

}  // namespace penstock::swap
