#include "swap/residency/host_residency.hpp"

#include <algorithm>
#include <utility>

// Loads and stores of HostResidency: their start, their results, and the evacuation of paths.

namespace penstock::swap {

using tiers::CopyState;
using tiers::Extent;
using tiers::TensorId;

void HostResidency::start_load(TensorId tensor, tiers::Reservation reservation, bool verify, bool urgent) {
  load_errors_.erase(tensor);
  store_.begin_load(tensor, std::move(reservation));
  update_policies(tensor);
  if (urgent) {
    hastened_.insert(tensor);
  } else {
    hastened_.erase(tensor);
  }
  effects_.load(tensor, verify || !store_.description(tensor).sealed_in_pass, urgent);
}

void HostResidency::finish_load(TensorId tensor, const Result<void>& result) {
  if (result) {
    ledger_.read(store_.description(tensor).purpose, store_.description(tensor).extent->length);
    store_.finish_load(tensor, true);
    store_.touch(tensor);
    update_policies(tensor);
    if (discard_if_unwanted(tensor)) return;
    move_off_retired_path(tensor);
    return grant_loaded(tensor);
  }
  load_failed(tensor, result.error());
}

void HostResidency::load_failed(TensorId tensor, const Error& cause) {
  const auto& description = store_.description(tensor);
  Error error = cause;
  if (error.code() != ErrorCode::corrupted) error = std::move(error).note("tensor  " + description.name);
  if (error.code() == ErrorCode::deadline_exceeded) {
    quarantined_.push_back(store_.take_load_range(tensor));
    error = std::move(error).note("memory  " + to_string(quarantined_.back().size()) +
                                  " are not reused: the kernel may still write there");
  }
  store_.finish_load(tensor, false);
  evacuation_.note_fault(*description.extent, cause);
  evacuation_.note_unreadable(tensor);
  unreadable_.insert(tensor);
  effects_.drop(tensor);
  if (!discard_if_unwanted(tensor)) update_policies(tensor);
  load_errors_.insert_or_assign(tensor, std::move(error));
}

void HostResidency::note_corrupted(TensorId tensor, const Error& error) {
  const auto& extent = store_.description(tensor).extent;
  if (extent) evacuation_.note_fault(*extent, error);
}

void HostResidency::store_from(TensorId tensor, HostSpan bytes) {
  store_.set_outside(tensor, bytes);
  to_store_.push_back(tensor);
  update_policies(tensor);
}

std::vector<TensorId> HostResidency::dirty() const {
  std::vector<TensorId> tensors = store_.tensors();
  std::erase_if(tensors, [this](TensorId tensor) {
    return !store_.description(tensor).extent || store_.copy(tensor).state != CopyState::dirty;
  });
  return tensors;
}

std::map<std::uint32_t, ByteCount> HostResidency::bytes_to_store() const {
  std::map<std::uint32_t, ByteCount> bytes;
  for (const auto& [tensor, place] : storing_) bytes[place.path] += place.length;
  const auto add = [&](TensorId tensor) {
    const Extent& place = *store_.description(tensor).extent;
    if (store_.copy(tensor).state == CopyState::dirty) bytes[place.path] += place.length;
  };
  for (const TensorId tensor : to_store_) add(tensor);
  for (const TensorId tensor : asked_queue_) add(tensor);
  return bytes;
}

std::vector<TensorId> HostResidency::changed_homes() const {
  std::vector<TensorId> tensors = store_.tensors();
  std::erase_if(tensors, [this](TensorId tensor) {
    const CopyState state = store_.copy(tensor).state;
    const bool is_changed =
        state == CopyState::dirty || (state == CopyState::storing && !store_.stored(tensor));
    return !is_changed || !store_.description(tensor).write_behind || !has_home(tensor);
  });
  return tensors;
}

bool HostResidency::ask_store(TensorId tensor) {
  asked_errors_.erase(tensor);
  const CopyState state = store_.copy(tensor).state;
  if (state != CopyState::dirty && state != CopyState::storing) return false;
  if (asked_.insert(tensor).second) asked_queue_.push_back(tensor);
  return true;
}

std::optional<Error> HostResidency::asked_error(TensorId tensor) const {
  const auto found = asked_errors_.find(tensor);
  return found == asked_errors_.end() ? std::nullopt : std::optional(found->second);
}

void HostResidency::start_asked_stores() {
  constexpr std::size_t at_a_time = 4;  // keep a disk busy; each computes its checksums before it writes
  while (asked_storing_.size() < at_a_time && !asked_queue_.empty()) {
    const TensorId tensor = asked_queue_.front();
    asked_queue_.pop_front();
    const tiers::HostCopy& copy = store_.copy(tensor);
    const bool starts = copy.state == CopyState::dirty && !copy.exclusive;
    if (!starts && copy.state != CopyState::storing) {
      asked_.erase(tensor);  // stored meanwhile, discarded, or written again
      continue;
    }
    asked_storing_.insert(tensor);
    if (starts) start_write_behind(tensor);
  }
}

/// Starts the queued stores.
void HostResidency::start_stores() {
  while (!to_store_.empty()) {
    const TensorId tensor = to_store_.front();
    to_store_.pop_front();
    const tiers::HostCopy& copy = store_.copy(tensor);
    if (copy.state == CopyState::dirty && !copy.exclusive) start_write_behind(tensor);
  }
  start_asked_stores();
}

/// Of a dirty copy. That no path has room is an error, which take_store_error() returns.
void HostResidency::start_write_behind(TensorId tensor) {
  if (auto started = start_store(tensor); !started) fail_store(tensor, std::move(started).error());
}

/// A request waits for room that stores make: it waits for all that have begun.
void HostResidency::hasten_stores() {
  if (std::exchange(stores_hastened_, stores_begun_) == stores_begun_) return;
  for (const auto& [tensor, place] : storing_) hasten(tensor);
}

void HostResidency::hasten(TensorId tensor) {
  if (hastened_.insert(tensor).second) effects_.hasten(tensor);
}

/// Errors: no_space, when no path has room.
Result<void> HostResidency::start_store(TensorId tensor) {
  PENSTOCK_TRY_ASSIGN(const Extent place, evacuation_.place_for(tensor));
  store_.begin_store(tensor);
  storing_.emplace(tensor, place);
  ++stores_begun_;
  hastened_.erase(tensor);
  update_policies(tensor);
  effects_.store(tensor, place);
  return ok();
}

void HostResidency::fail_store(TensorId tensor, Error cause) {
  Error error = std::move(cause).note("tensor  " + store_.description(tensor).name +
                                      " stays in memory, not yet stored");
  asked_storing_.erase(tensor);
  if (asked_.erase(tensor) > 0 && has_home(tensor)) {
    asked_errors_.insert_or_assign(tensor, std::move(error));
    return;
  }
  failed_stores_.push_back(tensor);
  if (store_error_) return;  // the caller gets the first error
  store_error_ = {tensor, std::move(error)};
}

void HostResidency::finish_store(TensorId tensor, const Result<void>& result) {
  const Extent place = storing_.extract(tensor).mapped();
  store_.finish_store(tensor, result.has_value());
  const auto& description = store_.description(tensor);
  const bool had_failed_store = evacuation_.has_failed_store(tensor);
  if (result) {
    relocate(tensor, place);
    unreadable_.erase(tensor);
    ledger_.wrote(description.purpose, place.length);
  } else if (unwanted_.contains(tensor)) {
    if (place != *description.extent) extents_.release(place);
    evacuation_.note_fault(place, result.error());
    evacuation_.store_ended(tensor);
  } else if (store_elsewhere(tensor, place, result.error())) {
    return;
  }
  update_policies(tensor);
  if (discard_if_unwanted(tensor)) return;
  const tiers::HostCopy& copy = store_.copy(tensor);
  if (copy.state != CopyState::dirty) {
    asked_storing_.erase(tensor);
    asked_.erase(tensor);
    asked_errors_.erase(tensor);
  }
  const bool evacuated = evacuation_.end(tensor);
  if (copy.state == CopyState::dirty) return fail_store(tensor, result.error());
  if (result && !had_failed_store) move_off_retired_path(tensor);
  const bool kept = keeps(tensor) && (!evacuated || has_home(tensor));
  if (!kept && !copy.leased() && copy.state == CopyState::clean) drop(tensor);
}

/// Makes `place`, where the contents are stored now, the extent of the tensor, and frees the old extent.
void HostResidency::relocate(TensorId tensor, const Extent& place) {
  evacuation_.store_ended(tensor);
  const auto& description = store_.description(tensor);
  if (place == *description.extent) return;
  const Extent old = store_.relocate(tensor, place);
  ledger_.hold(tiers::Tier::nvme, description.purpose, place.length);
  // A write that hangs may still modify the old extent. That is harmless: its path is retired, so that no other tensor
  // gets the extent.
  release_extent(old, description.purpose);
  evacuation_.note_departed(tensor, old.path, old.length);
}

/// Frees the extent, unless a generation pins it.
void HostResidency::release_extent(const Extent& extent, tiers::Purpose purpose) {
  if (extents_.release(extent)) ledger_.give_back(tiers::Tier::nvme, purpose, extent.length);
}

/// Repeats a store that failed at `place` on another path. False when there is none.
bool HostResidency::store_elsewhere(TensorId tensor, const Extent& place, const Error& error) {
  if (place != *store_.description(tensor).extent) extents_.release(place);
  evacuation_.store_failed(tensor, place, error);
  if (!start_store(tensor)) {
    evacuation_.store_ended(tensor);
    return false;
  }
  evacuation_.report_store_elsewhere(tensor, place, error);
  return true;
}

/// Moves tensors off retired paths, one at a time, while memory has room. May evict clean copies whose next use is
/// later than that of the tensor. Removes a tensor from the queue without moving it in two cases: if its copy is dirty,
/// because its next store uses another path; and if its copy is in a transfer or leased exclusively, because it is
/// queued again, or is dirty, when the transfer or lease ends.
void HostResidency::evacuate_paths() {
  while (const auto next = evacuation_.next()) {
    const tiers::HostCopy& copy = store_.copy(*next);
    const bool on_retired_path = evacuation_.on_retired_path(*next);
    if (on_retired_path && copy.state == CopyState::clean && !copy.exclusive) {
      if (start_store(*next)) evacuation_.begin(*next, std::nullopt);
    } else if (on_retired_path && copy.state == CopyState::dirty && has_home(*next)) {
      queue_store(*next);  // nothing else stores it
    } else if (on_retired_path && copy.state == CopyState::absent) {
      if (!start_evacuation(*next)) return;
    }
    evacuation_.remove_next();
  }
}

/// Moves a tensor that has no host copy. False when memory has no room for it now.
bool HostResidency::start_evacuation(TensorId tensor) {
  auto place = extents_.allocate(store_.description(tensor).size);
  if (!place) return true;  // it stays where it is
  if (!store_.stored(tensor)) {
    relocate(tensor, *place);  // never written: nothing to lose
    return true;
  }
  auto reservation = reserve_early(tensor, prefetch_.evicts_from(tensor));
  if (!reservation) {
    extents_.release(*place);
    return false;
  }
  evacuation_.begin(tensor, *place);
  start_load(tensor, std::move(*reservation), /*verify=*/true, /*urgent=*/false);
  return true;
}

/// Moves a tensor with a clean host copy off a retired path. If the copy was loaded for that purpose, stores it now;
/// otherwise queues the tensor.
void HostResidency::move_off_retired_path(TensorId tensor) {
  if (!evacuation_.on_retired_path(tensor)) return;
  if (!evacuation_.end(tensor)) return evacuation_.queue(tensor);
  if (start_store(tensor)) evacuation_.begin(tensor, std::nullopt);
}

std::optional<Error> HostResidency::take_store_error() {
  for (const TensorId tensor : std::exchange(failed_stores_, {})) to_store_.push_back(tensor);
  const auto error = std::exchange(store_error_, std::nullopt);
  return error ? std::optional(error->error) : std::nullopt;
}

Result<void> HostResidency::pin_extent(TensorId tensor, std::uint64_t generation) {
  const auto& description = store_.description(tensor);
  // A store of what is stored already moves it off a retired path, and writes another extent.
  if (!description.extent || !store_.stored(tensor)) {
    return Error::invalid_argument("Runtime::pin_extent")
        .object(description.name)
        .reason("its newest contents are not stored in an extent")
        .advice("add it with write_behind, end its lease, and call flush() first");
  }
  extents_.pin(*description.extent, generation, description.purpose);
  return ok();
}

Result<void> HostResidency::pin_earlier(const PinnedExtent& pinned) {
  const Extent& extent = pinned.extent;
  if (!extents_.pin_earlier(extent, pinned.generation, pinned.purpose)) {
    return Error::invalid_argument("Runtime::create")
        .object("pinned")
        .reason("the bytes overlap others, are misaligned, or are beyond the end of the swap file")
        .at(extent.offset)
        .got(to_string(extent.length) + " of path " + std::to_string(extent.path));
  }
  ledger_.hold(tiers::Tier::nvme, pinned.purpose, extent.length);
  return ok();
}

std::set<std::uint32_t> HostResidency::paths_with_contents() const {
  std::set<std::uint32_t> paths;
  for (const TensorId tensor : store_.tensors()) {
    const auto& extent = store_.description(tensor).extent;
    if (extent && store_.stored(tensor)) paths.insert(extent->path);
  }
  return paths;
}

void HostResidency::note_lost_writes(std::uint32_t path, const Error& error) {
  evacuation_.note_fault({.path = path}, Error(ErrorCode::failed_state, "Runtime::sync")
                                             .reason("writes may be lost: a flush has failed")
                                             .note("cause   " + error.message()));
}

void HostResidency::release_generation(std::uint64_t generation) {
  for (const auto& [extent, purpose] : extents_.release_generation(generation)) {
    ledger_.give_back(tiers::Tier::nvme, purpose, extent.length);
  }
}

}  // namespace penstock::swap
