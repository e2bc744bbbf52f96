#include <penstock/swap/lease.hpp>

#include "swap/runtime_state.hpp"

#include <algorithm>

namespace penstock::swap {

using tiers::TensorId;

void Lease::end() noexcept {
  bytes_ = {};
  if (const auto runtime = std::exchange(runtime_, nullptr)) runtime->end_lease(tensor_, access_, owner_);
}

void PendingLease::ask() {
  if (runtime_ == nullptr || request_ || refusal_) return;
  const bool announced = std::exchange(use_is_counted_, false);
  auto request = runtime_->ask(tensor_, access_, announced ? Use::unrecorded : Use::recorded, announced,
                               {.thread = std::this_thread::get_id()});
  if (request) {
    request_ = *request;
  } else {
    refusal_ = request.error();
  }
}

std::optional<Result<Lease>> PendingLease::poll() {
  if (runtime_ != nullptr && refusal_) {
    runtime_ = nullptr;
    return *std::exchange(refusal_, std::nullopt);
  }
  if (runtime_ == nullptr || !request_) return std::nullopt;
  auto bytes = runtime_->take(*request_, tensor_);
  if (!bytes) return std::nullopt;
  const auto runtime = std::exchange(runtime_, nullptr);
  if (!*bytes) return bytes->error();
  return Lease(runtime, tensor_, access_, **bytes, /*owner=*/{});
}

void PendingLease::cancel() noexcept {
  const auto runtime = std::exchange(runtime_, nullptr);
  const bool is_known = request_ || use_is_counted_;
  if (runtime != nullptr && !refusal_ && is_known) runtime->cancel(request_, tensor_, access_);
  refusal_.reset();
}

// What leases ask of the runtime's state.

namespace {

Result<void> check_enumerators(Access access, Use use) {
  const auto unknown = [](const char* name, unsigned number) {
    return Error::invalid_argument("Runtime::request").object(name).wanted("an enumerator").got(number);
  };
  if (access > Access::overwrite) return unknown("access", unsigned(access));
  if (use > Use::unrecorded) return unknown("use", unsigned(use));
  return ok();
}

}  // namespace

Result<RequestId> RuntimeState::ask(TensorId tensor, Access access, Use use, bool announced,
                                    Requester requester) {
  Result<RequestId> id = RequestId();
  change([&] {
    if (auto known = check_known("Runtime::request", tensor); !known) {
      id = known.error();
      return;
    }
    auto possible = check_enumerators(access, use);
    if (possible && tensor != all_memory) possible = check_not_parked("Runtime::request");
    if (!possible) {
      if (announced) residency.retract(tensor);
      id = possible.error();
      return;
    }
    id = residency.request(tensor, access, use, requester);
    if (announced) residency.retract(tensor);
  });
  return id;
}

std::optional<Result<HostSpan>> RuntimeState::take(RequestId id, TensorId tensor) {
  std::unique_lock lock(mutex);
  if (stopping)
    return Error(ErrorCode::failed_state, "PendingLease::poll").reason("the runtime was destroyed");
  auto outcome = residency.take(id);
  // What was granted before may be held now, so that it makes no room for this request.
  const bool has_changed = !outcome && fail_starved();
  if (has_changed) outcome = residency.take(id);
  std::optional<Result<HostSpan>> result;
  if (outcome && *outcome) result = moves.payload(tensor);
  if (outcome && !*outcome) result = outcome->error();
  if (has_changed) wake(std::move(lock));
  return result;
}

void RuntimeState::cancel(std::optional<RequestId> id, TensorId tensor, Access access) noexcept {
  change([&] {
    if (id) {
      residency.cancel(*id, tensor, access);
    } else {
      residency.retract(tensor);
    }
  });
}

void RuntimeState::end_lease(TensorId tensor, Access access, std::thread::id owner) noexcept {
  change([&] {
    if (const auto found = std::find(owned.begin(), owned.end(), OwnedLease{tensor, access, owner});
        found != owned.end()) {
      *found = owned.back();
      owned.pop_back();
    }
    residency.release(tensor, access);
  });
}

Result<void> RuntimeState::check_not_own(TensorId tensor, Access access) const {
  const std::thread::id self = std::this_thread::get_id();
  const bool excluded = std::any_of(owned.begin(), owned.end(), [&](const OwnedLease& lease) {
    return lease.tensor == tensor && lease.owner == self &&
           (lease.access != Access::read || access != Access::read);
  });
  const auto refused = [&](const char* reason, const char* advice) {
    return Error::invalid_argument("Runtime::acquire")
        .object(store.description(tensor).name)
        .reason(reason)
        .advice(advice);
  };
  if (excluded) {
    return refused("this thread holds a lease that excludes this one, so that the call would wait for ever",
                   "end that lease before, or request() one that another thread will end");
  }
  if (!residency.has_excluding_request(self, tensor, access)) return ok();
  return refused(
      "this thread has a PendingLease that excludes this one, so that the call would wait for ever",
      "poll() that one, or cancel() it");
}

PendingLease Runtime::request(TensorId tensor, Access access, Use use) {
  return request_as(Caller::user, tensor, access, use);
}

PendingLease Runtime::request_as(Caller caller, TensorId tensor, Access access, Use use) {
  if (caller == Caller::user) {
    const std::lock_guard lock(state_->mutex);
    const auto usable = state_->check_usable("Runtime::request", caller, tensor);
    if (!usable) return PendingLease(state_, usable.error());
  }
  auto id = state_->ask(tensor, access, use, /*announced=*/false, {.thread = std::this_thread::get_id()});
  if (!id) return PendingLease(state_, id.error());
  return {state_, tensor, access, *id, /*use_is_counted=*/false};
}

PendingLease Runtime::announce(TensorId tensor, Access access) {
  return announce_as(Caller::user, tensor, access);
}

PendingLease Runtime::announce_as(Caller caller, TensorId tensor, Access access) {
  Result<void> usable;
  state_->change([&] {
    usable = state_->check_usable("Runtime::announce", caller, tensor);
    if (usable) state_->residency.announce(tensor, access);
  });
  if (!usable) return PendingLease(state_, usable.error());
  return {state_, tensor, access, std::nullopt, /*use_is_counted=*/true};
}

Result<Lease> Runtime::acquire(TensorId tensor, Access access, Use use) {
  return acquire_as(Caller::user, tensor, access, use);
}

Result<Lease> Runtime::acquire_as(Caller caller, TensorId tensor, Access access, Use use) {
  const auto state = state_;  // the runtime may be destroyed while this thread waits
  const std::thread::id self = std::this_thread::get_id();
  PENSTOCK_TRY(check_stores());
  {
    const std::lock_guard lock(state->mutex);
    PENSTOCK_TRY(state->check_usable("Runtime::acquire", caller, tensor));
    PENSTOCK_TRY(state->check_not_own(tensor, access));
  }
  // The use is recorded with the grant, so that a call that is repeated after a failed store counts once.
  PENSTOCK_TRY_ASSIGN(const RequestId id, state->ask(tensor, access, Use::unrecorded, /*announced=*/false,
                                                     {.thread = self, .blocks = true}));
  std::optional<Result<void>> outcome;
  std::optional<Error> failed;
  std::unique_lock lock(state->mutex);
  ++state->waiting;
  state->drive_until(
      lock,
      [&] {
        outcome = state->residency.take(id);
        return outcome || state->closing || (failed = state->residency.take_store_error());
      },
      StallCause::loads);
  --state->waiting;
  if (state->closing) state->waiters.notify();  // ~Runtime waits for this
  if (!outcome) {
    // Before the lock is released, because the request could be granted then.
    state->residency.cancel(id, tensor, access);
    if (failed) return state->report_store_error(std::move(lock), std::move(failed)).error();
    return Error(ErrorCode::failed_state, "Runtime::acquire").reason("the runtime was destroyed");
  }
  if (!*outcome) return outcome->error();
  if (use == Use::recorded) {
    state->residency.record_use(tensor, access);
    state->advance();
  }
  state->owned.push_back({tensor, access, self});
  const HostSpan payload = state->moves.payload(tensor);
  state->wake(std::move(lock));
  return Lease(state, tensor, access, payload, self);
}

}  // namespace penstock::swap
