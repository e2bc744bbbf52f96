#include <penstock/base/check.hpp>
#include <penstock/swap/transfer/swapper.hpp>

#include <algorithm>

namespace penstock::swap {

using tiers::CopyState;
using tiers::TensorId;
using tiers::Tier;

Swapper::Swapper(tiers::TensorStore& store, tiers::MemoryBudget& budget, ExtentAllocator& extents,
                 TransferEngine& transfers, tiers::Ledger& ledger, Options options)
    : store_(store),
      budget_(budget),
      extents_(extents),
      transfers_(transfers),
      ledger_(ledger),
      options_(std::move(options)),
      messages_(std::exchange(options_.messages, {})) {}

Result<void> Swapper::settle(TensorId tensor) {
  while (true) {
    if (auto range = reserve_free(tensor)) {
      store_.settle(tensor, Tier::host, std::move(*range));
      return ok();
    }
    if (evict_one(/*spare_next_use=*/0, /*clean_only=*/true)) continue;
    return budget_.too_small(padded_size(tensor)).object(store_.description(tensor).name);
  }
}

Ticket Swapper::request(TensorId tensor, Access access) {
  const Ticket ticket{.slot = next_ticket_++, .generation = 0};
  requests_.push_back({ticket, tensor, access});
  std::erase(prefetches_, tensor);  // it was for this use
  awaited_.erase(tensor);
  return ticket;
}

std::optional<Result<HostSpan>> Swapper::take(Ticket ticket) {
  const auto found = outcomes_.find(ticket);
  if (found == outcomes_.end()) return std::nullopt;
  auto outcome = std::move(found->second);
  outcomes_.erase(found);
  return outcome;
}

void Swapper::cancel(Ticket ticket, TensorId tensor, Access access) {
  std::erase_if(requests_, [&](const Request& request) { return request.ticket == ticket; });
  const auto outcome = take(ticket);
  if (!outcome || !*outcome) return;
  if (access == Access::read) return release(tensor, access);
  store_.cancel_exclusive(tensor, Tier::host);
  if (store_.copy(tensor, Tier::host).state == CopyState::absent) {
    resident_.erase(tensor);
    return;
  }
  // Its store may have been passed over while the lease was held.
  const auto& description = store_.description(tensor);
  if (description.write_behind && description.extent) to_store_.push_back(tensor);
  after_lease(tensor);
}

void Swapper::finish(const Request& request, Result<HostSpan> outcome) {
  outcomes_.emplace(request.ticket, std::move(outcome));
}

HostSpan Swapper::bytes(TensorId tensor) const {
  const tiers::Copy& copy = store_.copy(tensor, Tier::host);
  return options_.arena.subspan(ByteCount(copy.reservation.offset()), store_.description(tensor).size);
}

/// What the tensor takes in memory: a transfer moves whole blocks of the file system.
ByteCount Swapper::padded_size(TensorId tensor) const {
  const auto& description = store_.description(tensor);
  return description.extent ? description.extent->length : description.size;
}

void Swapper::release(TensorId tensor, Access access) {
  const auto& description = store_.description(tensor);
  if (access == Access::read) {
    store_.remove_reader(tensor, Tier::host);
  } else {
    store_.end_exclusive(tensor, Tier::host);
    if (description.write_behind && description.extent) to_store_.push_back(tensor);
  }
  after_lease(tensor);
}

/// What is not to be kept goes.
void Swapper::after_lease(TensorId tensor) {
  const auto& description = store_.description(tensor);
  store_.touch(tensor, Tier::host);
  const tiers::Copy& copy = store_.copy(tensor, Tier::host);
  if (copy.leased()) return;
  if (description.transient) return discard(tensor);
  if (copy.state == CopyState::clean) leave_retired_path(tensor);
  if (!description.retain && description.extent && copy.state == CopyState::clean) {
    store_.drop(tensor, Tier::host);
    resident_.erase(tensor);
  }
}

void Swapper::discard(TensorId tensor) {
  const CopyState state = store_.copy(tensor, Tier::host).state;
  if (state == CopyState::absent) return;
  if (state == CopyState::loading || state == CopyState::storing) {
    unwanted_.insert(tensor);
    return;
  }
  store_.drop(tensor, Tier::host, /*discard=*/true);
  resident_.erase(tensor);
  end_draining(tensor);
}

bool Swapper::at_rest(TensorId tensor) const {
  const CopyState state = store_.copy(tensor, Tier::host).state;
  return state != CopyState::loading && state != CopyState::storing;
}

void Swapper::forget(TensorId tensor) {
  for (auto* queue : {&prefetches_, &to_store_, &to_move_}) std::erase(*queue, tensor);
  failed_on_.erase(tensor);
  end_draining(tensor);
  std::erase(failed_stores_, tensor);
  load_errors_.erase(tensor);
  trace_.forget(tensor);
  awaited_.erase(tensor);
  // Others whose stores failed with it are tried again, and speak for themselves.
  if (store_error_ && store_error_->tensor == tensor) (void)take_store_error();
}

tiers::TensorDescription Swapper::remove(TensorId tensor) {
  discard(tensor);
  tiers::TensorDescription description = store_.remove(tensor);
  if (const auto& extent = description.extent) {
    extents_.release(*extent);
    settle_retired(tensor, extent->path, ByteCount());
  }
  return description;
}

void Swapper::stop() {
  stopping_ = true;
  prefetches_.clear();
  to_move_.clear();
}

bool Swapper::discard_if_unwanted(TensorId tensor) {
  if (unwanted_.erase(tensor) == 0) return false;
  discard(tensor);
  return true;
}

void Swapper::use(TensorId tensor) {
  trace_.use(tensor);
  const bool asked_for =
      std::any_of(requests_.begin(), requests_.end(), [&](const Request& r) { return r.tensor == tensor; });
  if (!asked_for && !store_.copy(tensor, Tier::host).leased()) awaited_.insert(tensor);
  if (!trace_.known()) return;
  ByteCount ahead;
  for (std::uint64_t i = 0; i < trace_.length(); ++i) {
    const TensorId next = trace_.upcoming(i);
    ahead += store_.description(next).size;
    if (ahead > options_.lookahead) break;
    // What is not kept streams through a ring of its own, whose depth its user decides.
    if (store_.description(next).retain) prefetch(next);
  }
}

void Swapper::end_round() {
  trace_.end_round();
  awaited_.clear();
}

std::uint64_t Swapper::next_use(TensorId tensor) const {
  return awaited_.contains(tensor) ? 0 : trace_.next_use(tensor);
}

void Swapper::prefetch(TensorId tensor) {
  const tiers::Copy& copy = store_.copy(tensor, Tier::host);
  if (copy.state != CopyState::absent || !store_.current(tensor, Tier::nvme)) return;
  if (std::find(prefetches_.begin(), prefetches_.end(), tensor) == prefetches_.end()) {
    prefetches_.push_back(tensor);
  }
}

void Swapper::start_stores() {
  while (!to_store_.empty()) {
    const TensorId tensor = to_store_.front();
    to_store_.pop_front();
    const tiers::Copy& copy = store_.copy(tensor, Tier::host);
    if (copy.state == CopyState::dirty && !copy.exclusive) start_store(tensor);
  }
}

void Swapper::advance() {
  start_stores();
  // A request that waits for room holds back the room of all that came later, not what is resident.
  bool may_reserve = !store_failed();
  for (auto request = requests_.begin(); request != requests_.end();) {
    const Verdict verdict = serve(*request, may_reserve);
    if (verdict == Verdict::granted || verdict == Verdict::failed) {
      request = requests_.erase(request);
      continue;
    }
    if (verdict == Verdict::waits_for_room) may_reserve = false;
    ++request;
  }
  if (may_reserve && !stopping_) {
    serve_prefetches();
    drain_paths();
    start_stores();
  } else {
    prefetches_.clear();
    if (!store_failed()) fail_starved_request();
  }
}

/// If nothing is in flight and the first request still waits for room, nothing will ever free it.
void Swapper::fail_starved_request() {
  // A move that is blocked frees nothing; one whose lease was granted goes on.
  if (transfers_.active() > transfers_.blocked() || !outcomes_.empty()) return;
  const auto starved = std::find_if(requests_.begin(), requests_.end(), [this](const Request& request) {
    return store_.copy(request.tensor, Tier::host).state == CopyState::absent;
  });
  if (starved == requests_.end()) return;
  Error error =
      budget_.too_small(padded_size(starved->tensor)).object(store_.description(starved->tensor).name);
  for (const TensorId tensor : resident_) {
    if (!store_.copy(tensor, Tier::host).leased()) continue;
    error = std::move(error).note("leased  " + store_.description(tensor).name + " " +
                                  to_string(store_.description(tensor).size));
  }
  finish(*starved, std::move(error));
  requests_.erase(starved);
}

Swapper::Verdict Swapper::serve(Request& request, bool may_reserve) {
  const TensorId tensor = request.tensor;
  const tiers::Copy& copy = store_.copy(tensor, Tier::host);
  if (copy.state != CopyState::absent) return grant_resident(request);

  if (request.asked_for_load) {
    if (const auto failed = load_errors_.find(tensor); failed != load_errors_.end()) {
      finish(request, failed->second);
      load_errors_.erase(failed);
      return Verdict::failed;
    }
  }
  if (request.access != Access::overwrite && !store_.current(tensor, Tier::nvme)) {
    finish(request, Error::invalid_argument("Swapper::acquire")
                        .reason("read before it was ever written")
                        .object(store_.description(tensor).name));
    return Verdict::failed;
  }
  if (copy.reservation.held()) return grant_overwrite(request, {});
  if (!may_reserve) return Verdict::waits_for_room;
  auto reservation = reserve(tensor, /*spare_next_use=*/0);
  if (!reservation) return Verdict::waits_for_room;
  if (request.access == Access::overwrite) return grant_overwrite(request, std::move(*reservation));
  start_load(tensor, std::move(*reservation));
  request.asked_for_load = true;
  return Verdict::waits;
}

Swapper::Verdict Swapper::grant_resident(const Request& request) {
  const tiers::Copy& copy = store_.copy(request.tensor, Tier::host);
  if (copy.state == CopyState::loading || copy.exclusive) return Verdict::waits;
  if (request.access == Access::read) {
    store_.add_reader(request.tensor, Tier::host);
  } else {
    if (copy.readers > 0 || copy.state == CopyState::storing) return Verdict::waits;
    store_.begin_exclusive(request.tensor, Tier::host);
  }
  finish(request, bytes(request.tensor));
  return Verdict::granted;
}

Swapper::Verdict Swapper::grant_overwrite(const Request& request, tiers::Reservation range) {
  store_.begin_overwrite(request.tensor, Tier::host, std::move(range));
  resident_.insert(request.tensor);
  finish(request, bytes(request.tensor));
  return Verdict::granted;
}

/// Address range for `tensor` from what is free now.
std::optional<tiers::Reservation> Swapper::reserve_free(TensorId tensor) {
  const auto& description = store_.description(tensor);
  const auto end = description.retain && !description.transient ? tiers::RangeAllocator::End::low
                                                                : tiers::RangeAllocator::End::high;
  return budget_.reserve(padded_size(tensor), description.purpose, end);
}

/// The same, evicting what the policy says; copies used sooner than `spare_next_use` from now stay. Nothing
/// when it must wait.
std::optional<tiers::Reservation> Swapper::reserve(TensorId tensor, std::uint64_t spare_next_use) {
  while (true) {
    if (auto reservation = reserve_free(tensor)) return reservation;
    if (!evict_one(spare_next_use, /*clean_only=*/spare_next_use > 0)) return std::nullopt;
  }
}

/// The copies that may go.
void Swapper::find_candidates(std::uint64_t spare_next_use, bool clean_only) {
  candidates_.clear();
  for (const TensorId tensor : resident_) {
    const tiers::Copy& copy = store_.copy(tensor, Tier::host);
    const auto& description = store_.description(tensor);
    if (copy.leased() || !description.extent) continue;
    if (copy.state != CopyState::clean && (clean_only || copy.state != CopyState::dirty)) continue;
    const std::uint64_t use = next_use(tensor);
    if (use < spare_next_use) continue;
    candidates_.push_back({.tensor = tensor,
                           .size = description.size,
                           .dirty = copy.state == CopyState::dirty,
                           .last_use = copy.last_use,
                           .next_use = use});
  }
}

/// Lets one copy go. True when its room is free now; a dirty copy is stored first and frees it later.
bool Swapper::evict_one(std::uint64_t spare_next_use, bool clean_only) {
  find_candidates(spare_next_use, clean_only);
  const auto chosen = options_.policy->choose(candidates_);
  if (!chosen) return false;
  const EvictionCandidate& victim = candidates_[*chosen];
  if (victim.dirty) {
    // One store at a time is enough to make progress; more would write what may not have to go.
    if (storing_.empty()) start_store(victim.tensor);
    return false;
  }
  store_.drop(victim.tensor, Tier::host);
  resident_.erase(victim.tensor);
  return true;
}

/// What must get room before `tensor`, which is used `use` uses from now: all that is used sooner and has
/// none.
ByteCount Swapper::room_needed_before(TensorId tensor, std::uint64_t use) const {
  ByteCount needed;
  const auto add = [&](TensorId sooner) {
    const tiers::Copy& copy = store_.copy(sooner, Tier::host);
    if (copy.state == CopyState::absent && !copy.reservation.held()) needed += padded_size(sooner);
  };
  for (const TensorId sooner : awaited_) {
    if (sooner != tensor) add(sooner);
  }
  for (std::uint64_t i = 0; i < use && needed <= budget_.size(); ++i) {
    const TensorId sooner = trace_.upcoming(i);
    if (trace_.next_use(sooner) == i && !awaited_.contains(sooner)) add(sooner);
  }
  return needed;
}

/// For what nobody asks for yet: never at the cost of something that is used sooner, be it there or not, and
/// nothing is evicted that does not make the room.
std::optional<tiers::Reservation> Swapper::reserve_idle(TensorId tensor) {
  const std::uint64_t use = next_use(tensor);
  if (use == AccessTrace::never) return reserve_free(tensor);
  find_candidates(/*spare_next_use=*/use + 1, /*clean_only=*/true);
  ByteCount room = budget_.free();
  for (const EvictionCandidate& candidate : candidates_) room += padded_size(candidate.tensor);
  if (room < padded_size(tensor) + room_needed_before(tensor, use)) return std::nullopt;
  return reserve(tensor, use + 1);
}

void Swapper::serve_prefetches() {
  while (!prefetches_.empty()) {
    // What is used first gets room first. As the round goes on that changes, so that no order would stay.
    const auto first = std::min_element(prefetches_.begin(), prefetches_.end(),
                                        [this](TensorId a, TensorId b) { return next_use(a) < next_use(b); });
    const TensorId tensor = *first;
    const bool needed =
        store_.copy(tensor, Tier::host).state == CopyState::absent && store_.current(tensor, Tier::nvme);
    if (needed) {
      auto reservation = reserve_idle(tensor);
      if (!reservation) return;
      start_load(tensor, std::move(*reservation));
    }
    prefetches_.erase(first);
  }
}

}  // namespace penstock::swap
