#include "swap/residency/host_residency.hpp"

#include "tiers/store/tensor_slot.hpp"

#include <algorithm>
#include <set>

// Requests of HostResidency: their order, their grants, and those that starve.

namespace penstock::swap {

using tiers::CopyState;
using tiers::slot_of;
using tiers::TensorId;

RequestId HostResidency::request(TensorId tensor, Access access, Use use, Requester requester) {
  unreadable_.erase(tensor);
  prefetched_.erase(tensor);
  if (use == Use::recorded) record_use(tensor, access);
  const auto id = RequestId(next_request_++);
  requests_.push_back({id, tensor, access, requester});
  prefetch_.withdraw(tensor);  // this use needs no prefetch any more
  count_pending_use(tensor, +1);
  return id;
}

void HostResidency::announce(TensorId tensor, Access access) {
  unreadable_.erase(tensor);
  prefetched_.erase(tensor);
  record_use(tensor, access);
  count_pending_use(tensor, +1);
}

void HostResidency::retract(TensorId tensor) {
  count_pending_use(tensor, -1);
}

std::optional<Result<void>> HostResidency::take(RequestId id) {
  const auto found = outcomes_.find(id);
  if (found == outcomes_.end()) return std::nullopt;
  auto result = std::move(found->second.result);
  outcomes_.erase(found);
  return result;
}

void HostResidency::cancel(RequestId id, TensorId tensor, Access access) {
  const auto removed = std::erase_if(requests_, [&](const Request& request) { return request.id == id; });
  if (removed > 0 && storing_for_ == tensor) storing_for_.reset();
  if (removed > 0) return count_pending_use(tensor, -1);
  const auto outcome = take(id);
  if (outcome && *outcome) end_untaken({id, tensor, access});
}

/// Ends a lease that was granted and not taken.
void HostResidency::end_untaken(const Request& granted) {
  const TensorId tensor = granted.tensor;
  if (granted.access == Access::read) return release(tensor, granted.access);
  store_.cancel_exclusive(tensor);
  if (store_.copy(tensor).state == CopyState::absent) {
    effects_.drop(tensor);
    return update_policies(tensor);
  }
  // Queue the store again: start_stores() may have removed it from the queue, because the copy was leased exclusively.
  if (is_stored_behind(tensor)) to_store_.push_back(tensor);
  after_lease(tensor);
}

void HostResidency::finish(const Request& request, Result<void> outcome) {
  if (storing_for_ == request.tensor) storing_for_.reset();
  outcomes_.emplace(request.id, Outcome{request, std::move(outcome)});
  ++outcome_count_;
  count_pending_use(request.tensor, -1);
}

bool HostResidency::fail_starved_request() {
  if (store_failed()) return false;
  auto starved = first_without_room();
  if (starved == requests_.end()) return false;
  const RequestId id = starved->id;
  if (take_back_grants_after(id)) {
    advance();
    starved = first_without_room();
    const bool waits = starved != requests_.end() && starved->id == id && storing_.empty();
    if (!waits) return false;
  }
  const auto failed = request_to_fail(starved);
  if (failed == requests_.end()) return false;
  if (make_room(starved->tensor, /*from_homes=*/true) != Room::none) return true;
  // There may be room for the other one, which is asked again once that is stored.
  if (failed != starved && make_room(failed->tensor, /*from_homes=*/true) == Room::later) return true;
  const Decision decision = decide(*failed, /*may_reserve=*/failed != starved);
  if (decision == Decision::waits) return true;
  if (decision == Decision::waits_for_room) finish(*failed, no_room(*failed));
  requests_.erase(failed);
  return true;
}

Error HostResidency::no_room(const Request& request) const {
  Error error =
      budget_.too_small(padded_size(request.tensor))
          .object(store_.description(request.tensor).name)
          .advice(std::string("end leases, and take or cancel requests that were granted, then repeat the "
                              "call; or raise ") +
                  budget_.raisable());
  std::set<TensorId> untaken;
  for (const auto& [id, outcome] : outcomes_) {
    if (outcome.result) untaken.insert(outcome.request.tensor);
  }
  for (const TensorId tensor : store_.tensors()) {
    if (!store_.copy(tensor).leased()) continue;
    const auto& description = store_.description(tensor);
    error = std::move(error).note((untaken.contains(tensor) ? "granted, not polled  " : "leased  ") +
                                  description.name + " " + to_string(description.size));
  }
  return error;
}

HostResidency::Requests::iterator HostResidency::first_without_room() {
  return std::find_if(requests_.begin(), requests_.end(), [this](const Request& request) {
    return store_.copy(request.tensor).state == CopyState::absent;
  });
}

/// The request in which the thread blocks; none if it does not block.
HostResidency::Requests::iterator HostResidency::blocking_request(std::thread::id thread) {
  return std::find_if(requests_.begin(), requests_.end(), [&](const Request& request) {
    return request.requester.blocks && request.requester.thread == thread;
  });
}

/// The request whose failure lets a thread continue, for the reasons that fail_starved_request() states. None if some
/// thread can take a grant that is earlier than `starved`.
HostResidency::Requests::iterator HostResidency::request_to_fail(Requests::iterator starved) {
  auto failed = requests_.end();
  const auto end = outcomes_.lower_bound(starved->id);
  for (auto outcome = outcomes_.begin(); outcome != end; ++outcome) {
    if (!outcome->second.result) continue;
    const auto blocking = blocking_request(outcome->second.request.requester.thread);
    if (blocking == requests_.end()) return requests_.end();
    const bool lacks_room = store_.copy(blocking->tensor).state == CopyState::absent;
    if (lacks_room && (failed == requests_.end() || blocking->id > failed->id)) failed = blocking;
  }
  return failed == requests_.end() ? starved : failed;
}

bool HostResidency::has_excluding_request(std::thread::id thread, TensorId tensor, Access access) const {
  const auto excludes = [&](const Request& request) {
    return request.tensor == tensor && request.requester.thread == thread &&
           (request.access != Access::read || access != Access::read);
  };
  return std::any_of(requests_.begin(), requests_.end(), excludes) ||
         std::any_of(outcomes_.begin(), outcomes_.end(), [&](const auto& outcome) {
           return outcome.second.result && excludes(outcome.second.request);
         });
}

/// Takes back the grants of requests later than `id` that no caller has taken yet, and queues those requests again.
/// Their caller may be waiting for request `id` first and would then never take them; a thread that blocks in its
/// request takes it at once. True if there were any.
bool HostResidency::take_back_grants_after(RequestId id) {
  bool any = false;
  for (auto outcome = outcomes_.upper_bound(id); outcome != outcomes_.end();) {
    if (!outcome->second.result || outcome->second.request.requester.blocks) {
      ++outcome;
      continue;
    }
    const Request request = outcome->second.request;
    outcome = outcomes_.erase(outcome);
    const auto later = std::find_if(requests_.begin(), requests_.end(),
                                    [&](const Request& other) { return other.id > request.id; });
    requests_.insert(later, {request.id, request.tensor, request.access, request.requester});
    count_pending_use(request.tensor, +1);
    end_untaken(request);
    any = true;
  }
  return any;
}

HostResidency::Decision HostResidency::decide(Request& request, bool may_reserve) {
  const TensorId tensor = request.tensor;
  const tiers::HostCopy& copy = store_.copy(tensor);
  if (copy.state != CopyState::absent) {
    const Decision decision = grant_resident(request);
    return decision == Decision::waits ? wait_for_transfer(request) : decision;
  }
  if (request.loading) {
    if (const auto failed = load_errors_.find(tensor); failed != load_errors_.end()) {
      finish(request, failed->second);
      load_errors_.erase(failed);
      return Decision::failed;
    }
  }
  if (request.access != Access::overwrite && !store_.stored(tensor)) {
    finish(request, Error::invalid_argument("Runtime::acquire")
                        .reason("read before it was ever written")
                        .object(store_.description(tensor).name));
    return Decision::failed;
  }
  if (copy.reservation.held()) return grant_overwrite(request, {});
  if (!may_reserve) return Decision::waits_for_room;
  auto reservation = reserve(tensor);
  if (!reservation) {
    hasten_stores();
    return Decision::waits_for_room;
  }
  if (request.access == Access::overwrite) return grant_overwrite(request, std::move(*reservation));
  start_load(tensor, std::move(*reservation), /*verify=*/false, /*urgent=*/true);
  request.loading = true;
  return Decision::waits;
}

HostResidency::Decision HostResidency::grant_resident(const Request& request) {
  const tiers::HostCopy& copy = store_.copy(request.tensor);
  if (copy.state == CopyState::loading || copy.exclusive) return Decision::waits;
  if (request.access == Access::read) {
    store_.add_reader(request.tensor);
  } else {
    if (copy.readers > 0 || copy.state == CopyState::storing) return Decision::waits;
    store_.begin_exclusive(request.tensor);
  }
  finish(request, ok());
  return Decision::granted;
}

/// Of a tensor whose copy is loaded or stored, or leased.
HostResidency::Decision HostResidency::wait_for_transfer(const Request& request) {
  const CopyState state = store_.copy(request.tensor).state;
  if (state == CopyState::loading || state == CopyState::storing) hasten(request.tensor);
  return Decision::waits;
}

/// A copy is granted to the request that it was loaded for before an earlier request may evict it.
void HostResidency::grant_loaded(TensorId tensor) {
  const auto request = std::find_if(requests_.begin(), requests_.end(), [&](const Request& waiting) {
    return waiting.loading && waiting.tensor == tensor;
  });
  if (request != requests_.end() && grant_resident(*request) == Decision::granted) requests_.erase(request);
}

HostResidency::Decision HostResidency::grant_overwrite(const Request& request, tiers::Reservation range) {
  store_.begin_overwrite(request.tensor, std::move(range));
  finish(request, ok());
  return Decision::granted;
}

}  // namespace penstock::swap
